"""Language models and text classifiers from transformers, x-transformers and linformer."""

from collections.abc import Mapping
from functools import partial

from tools.bench.zoo.case import Case
from tools.bench.zoo.published.package import (
    CLASSES,
    LENGTH,
    WORDS,
    LastToken,
    Padded,
    Pooled,
    Take,
    hugging_face,
    package,
)
from torch import nn

TINY: Mapping[str, object] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "num_labels": CLASSES, "pad_token_id": 0,
}  # fmt: skip


def _text(kind: str, **options: object) -> nn.Module:
    options = {**TINY, **options}
    return Take(hugging_face(f"{kind}Config", f"{kind}ForSequenceClassification", **options))


def _padded(kind: str, **options: object) -> nn.Module:
    options = {**TINY, **options}
    return Padded(hugging_face(f"{kind}Config", f"{kind}ForSequenceClassification", **options))


def _causal(config: str, model: str, **options: object) -> nn.Module:
    options = {**TINY, "use_cache": False, **options}
    return LastToken(hugging_face(config, model, **options))


_GPT2: Mapping[str, object] = {
    "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "n_inner": 64,
}  # fmt: skip
_T5: Mapping[str, object] = {
    "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
}  # fmt: skip


def _t5_encoder() -> nn.Module:
    encoder = hugging_face("T5Config", "T5EncoderModel", vocab_size=WORDS, **_T5)
    return Pooled(encoder, 32, CLASSES, "last_hidden_state")


def _bart() -> nn.Module:
    bart = {
        "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    }  # fmt: skip
    options = {**TINY, **bart, "use_cache": False}
    return LastToken(hugging_face("BartConfig", "BartForConditionalGeneration", **options))


def _x_transformer(kind: str, **options: object) -> nn.Module:
    module = package("x_transformers")
    layers = getattr(module, kind)(dim=32, depth=2, heads=2, attn_dim_head=16, **options)
    wrapper: nn.Module = module.TransformerWrapper(
        num_tokens=WORDS,
        max_seq_len=LENGTH,
        attn_layers=layers,
        logits_dim=CLASSES,
        average_pool_embed=True,
    )
    return wrapper


def _linformer() -> nn.Module:
    made = package("linformer").Linformer
    encoder = made(dim=32, seq_len=LENGTH, depth=2, heads=2, k=6)
    return nn.Sequential(nn.Embedding(WORDS, 32), Pooled(encoder, 32, CLASSES))


_DEBERTA: Mapping[str, object] = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
}  # fmt: skip
_MOBILE: Mapping[str, object] = {
    "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16,
}  # fmt: skip
_words = partial(Case, "text", row=(LENGTH,), classes=CLASSES, vocabulary=WORDS)
_language = partial(Case, "text", row=(LENGTH,), classes=WORDS, vocabulary=WORDS)
TEXT: dict[str, Case] = {
    "transformers BERT": _words(partial(_text, "Bert")),
    "transformers BERT, padding masked": _words(partial(_padded, "Bert")),
    "transformers DistilBERT": _words(
        partial(_padded, "DistilBert", dim=32, n_layers=2, n_heads=2, hidden_dim=64)
    ),
    "transformers ALBERT": _words(partial(_padded, "Albert", embedding_size=16)),
    "transformers RoBERTa": _words(partial(_text, "Roberta")),
    "transformers ELECTRA": _words(partial(_padded, "Electra", embedding_size=16)),
    "transformers MobileBERT": _words(partial(_padded, "MobileBert", **_MOBILE)),
    "transformers SqueezeBERT": _words(partial(_padded, "SqueezeBert", embedding_size=32)),
    "transformers DeBERTa-v2": _words(partial(_padded, "DebertaV2", **_DEBERTA)),
    "transformers FNet": _words(partial(_text, "FNet")),
    "transformers ModernBERT": _words(partial(_padded, "ModernBert")),
    "transformers T5 encoder": _words(_t5_encoder),
    "transformers GPT-2": _language(partial(_causal, "GPT2Config", "GPT2LMHeadModel", **_GPT2)),
    "transformers GPT-NeoX": _language(partial(_causal, "GPTNeoXConfig", "GPTNeoXForCausalLM")),
    "transformers OPT": _language(
        partial(_causal, "OPTConfig", "OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32)
    ),
    "transformers Llama": _language(
        partial(_causal, "LlamaConfig", "LlamaForCausalLM", num_key_value_heads=1)
    ),
    "transformers Qwen2": _language(
        partial(_causal, "Qwen2Config", "Qwen2ForCausalLM", num_key_value_heads=1)
    ),
    "transformers Gemma": _language(
        partial(_causal, "GemmaConfig", "GemmaForCausalLM", num_key_value_heads=1, head_dim=16)
    ),
    "transformers Mamba": _language(
        partial(_causal, "MambaConfig", "MambaForCausalLM", state_size=4)
    ),
    "transformers BART": _language(_bart),
    "x-transformers Encoder": _words(partial(_x_transformer, "Encoder")),
    "x-transformers Decoder": _words(partial(_x_transformer, "Decoder", rotary_pos_emb=True)),
    "x-transformers Encoder, ALiBi": _words(
        partial(_x_transformer, "Encoder", alibi_pos_bias=True)
    ),
    "linformer Linformer": _words(_linformer),
}
