"""Segmentation and detection models from segmentation-models-pytorch, transformers and torchvision."""

from functools import partial

from tools.bench.zoo.case import Case
from tools.bench.zoo.published.package import Take, hugging_face, package
from tools.bench.zoo.published.text import TINY
from tools.bench.zoo.published.vision import IMAGE, LARGER
from torch import nn


def _segmentation(kind: str) -> nn.Module:
    models = package("segmentation_models_pytorch")
    model: nn.Module = getattr(models, kind)(
        "timm-mobilenetv3_small_minimal_100" if kind != "DeepLabV3Plus" else "resnet18",
        encoder_weights=None,
        classes=1,
    )
    return model


def _segformer() -> nn.Module:
    options = {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
        "patch_sizes": [7, 3], "strides": [2, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
        "decoder_hidden_size": 16, "num_labels": 1,
    }  # fmt: skip
    return Take(hugging_face("SegformerConfig", "SegformerForSemanticSegmentation", **options))


def _yolos() -> nn.Module:
    options = {**TINY, "image_size": (32, 32), "patch_size": 8, "num_detection_tokens": 4}
    return Take(hugging_face("YolosConfig", "YolosForObjectDetection", **options), "pred_boxes")


def _lraspp() -> nn.Module:
    made: nn.Module = package("torchvision").models.segmentation.lraspp_mobilenet_v3_large(
        weights_backbone=None, num_classes=1
    )
    return Take(made, "out")


_pixels = partial(Case, "segmentation and detection", classes=0)
_mask = partial(_pixels, row=LARGER, targets=(1, 64, 64))
PIXELS: dict[str, Case] = {
    "segmentation-models-pytorch Unet": _mask(partial(_segmentation, "Unet")),
    "segmentation-models-pytorch FPN": _mask(partial(_segmentation, "FPN")),
    "segmentation-models-pytorch DeepLabV3+": _mask(partial(_segmentation, "DeepLabV3Plus")),
    "transformers SegFormer": _pixels(_segformer, row=IMAGE, targets=(1, 16, 16)),
    "transformers YOLOS": _pixels(_yolos, row=IMAGE, targets=(4, 4)),
    "torchvision LR-ASPP": _mask(_lraspp),
}
