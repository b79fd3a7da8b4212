"""Audio and time-series models from transformers, conformer and pytorch-tcn."""

from collections.abc import Mapping
from functools import partial

from tools.bench.zoo.case import Case
from tools.bench.zoo.published.package import CLASSES, WORDS, Pooled, Take, hugging_face, package
from tools.bench.zoo.published.text import TINY
from torch import nn

_WAVE, _SPECTRUM = (1600,), (40, 64)
_SPEECH: Mapping[str, object] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "conv_dim": (16, 16, 16), "conv_stride": (5, 4, 4), "conv_kernel": (10, 8, 8), "num_labels": CLASSES,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16,
    "num_feat_extract_layers": 3,
}  # fmt: skip


def _speech(kind: str, **options: object) -> nn.Module:
    model = f"{kind}ForSequenceClassification"
    return Take(hugging_face(f"{kind}Config", model, **{**_SPEECH, **options}))


def _spectrogram_transformer() -> nn.Module:
    options = {
        **TINY, "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 40,
        "num_mel_bins": 64,
    }  # fmt: skip
    return Take(hugging_face("ASTConfig", "ASTForAudioClassification", **options))


def _whisper() -> nn.Module:
    options = {
        "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64,
        "num_mel_bins": 40, "max_source_positions": 32, "num_labels": CLASSES, "classifier_proj_size": 16,
        "vocab_size": WORDS, "decoder_layers": 1, "decoder_attention_heads": 2, "pad_token_id": 0,
    }  # fmt: skip
    return Take(hugging_face("WhisperConfig", "WhisperForAudioClassification", **options))


def _conformer() -> nn.Module:
    block = package("conformer").ConformerBlock
    made = block(dim=64, dim_head=16, heads=2, ff_mult=2, conv_kernel_size=7)
    return Pooled(made, 64, CLASSES)


_SERIES_OPTIONS: Mapping[str, object] = {
    "num_input_channels": 4, "context_length": 32, "patch_length": 8, "patch_stride": 8, "stride": 8,
    "d_model": 16, "num_hidden_layers": 2, "num_layers": 2, "num_attention_heads": 2, "ffn_dim": 32,
    "num_targets": CLASSES,
}  # fmt: skip


def _series(kind: str, task: str, part: str) -> nn.Module:
    return Take(hugging_face(f"{kind}Config", f"{kind}{task}", **_SERIES_OPTIONS), part)


def _tcn() -> nn.Module:
    made = package("pytorch_tcn").TCN
    tcn = made(num_inputs=4, num_channels=[8, 8], kernel_size=3, input_shape="NLC")
    return Pooled(tcn, 8, CLASSES)


_audio = partial(Case, "audio", classes=CLASSES)
_series_of = partial(Case, "time series", row=(32, 4), classes=CLASSES)
SIGNALS: dict[str, Case] = {
    "transformers Wav2Vec2": _audio(partial(_speech, "Wav2Vec2"), row=_WAVE),
    "transformers HuBERT": _audio(partial(_speech, "Hubert"), row=_WAVE),
    "transformers Audio Spectrogram Transformer": _audio(_spectrogram_transformer, row=_SPECTRUM),
    "transformers Whisper encoder": _audio(_whisper, row=_SPECTRUM),
    "conformer Conformer": _audio(_conformer, row=_SPECTRUM),
    "transformers PatchTST": _series_of(
        partial(_series, "PatchTST", "ForClassification", "prediction_logits")
    ),
    "transformers PatchTSMixer": _series_of(
        partial(_series, "PatchTSMixer", "ForTimeSeriesClassification", "prediction_outputs")
    ),
    "pytorch-tcn TCN": _series_of(_tcn),
}
