"""Image classifiers from timm, torchvision and vit-pytorch."""

from collections.abc import Mapping
from functools import partial

from tools.bench.zoo.case import Case
from tools.bench.zoo.published.package import SIDE, package
from torch import nn

IMAGE = (3, SIDE, SIDE)
LARGER = (3, 64, 64)


def _timm(name: str, **options: object) -> nn.Module:
    model: nn.Module = package("timm").create_model(name, num_classes=10, **options)
    return model


def _mixer(block: str, mlp_ratio: object) -> nn.Module:
    module = package("timm.models.mlp_mixer")
    model: nn.Module = module.MlpMixer(
        num_classes=10, img_size=SIDE, patch_size=8, num_blocks=2, embed_dim=32,
        mlp_ratio=mlp_ratio, block_layer=getattr(module, block),
    )  # fmt: skip
    return model


def _torchvision(name: str, **options: object) -> nn.Module:
    model: nn.Module = getattr(package("torchvision").models, name)(num_classes=10, **options)
    return model


def _vit_pytorch(module: str, kind: str, **options: object) -> nn.Module:
    made = getattr(package(f"vit_pytorch.{module}"), kind)
    model: nn.Module = made(**options)
    return model


_TRANSFORMER: Mapping[str, object] = {"img_size": SIDE, "patch_size": 8, "depth": 2}
_SHALLOW: Mapping[str, object] = {"depths": (1, 1, 1, 1)}
_TIMM: Mapping[str, Mapping[str, object]] = {
    "resnet10t": {}, "mobilenetv3_small_050": {}, "mobilenetv4_conv_small_035": {}, "ghostnet_050": {},
    "efficientnet_lite0": {}, "convnextv2_atto": _SHALLOW, "repvgg_a0": {}, "mobileone_s0": {},
    "vit_tiny_patch16_224": _TRANSFORMER, "deit_tiny_patch16_224": _TRANSFORMER,
    "cait_xxs24_224": _TRANSFORMER, "xcit_nano_12_p8_224": {"img_size": SIDE, "depth": 2},
    "swin_tiny_patch4_window7_224": {
        "img_size": SIDE, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4),
        "patch_size": 2,
    },
    "mobilevit_xxs": {}, "edgenext_xx_small": {}, "fastvit_t8": {},
    "mambaout_femto": _SHALLOW, "starnet_s1": _SHALLOW, "nfnet_l0": {}, "regnety_002": {},
    "rexnet_100": {}, "res2net50_14w_8s": {}, "hrnet_w18_small": {},
}  # fmt: skip
_LARGER = ("levit_128s", "efficientformerv2_s0", "botnet26t_256", "coatnet_pico_rw_224")
_MIXERS: Mapping[str, tuple[str, object]] = {
    "MLP-Mixer": ("MixerBlock", (0.5, 4.0)), "ResMLP": ("ResBlock", 4),
}  # fmt: skip
_VIT: Mapping[str, object] = {
    "image_size": SIDE, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 2, "heads": 2,
    "mlp_dim": 64,
}  # fmt: skip
_CCT: Mapping[str, object] = {
    "img_size": SIDE, "embedding_dim": 32, "num_layers": 2, "num_heads": 2, "mlp_ratio": 2,
    "num_classes": 10,
}  # fmt: skip
_CVT: Mapping[str, object] = {
    "num_classes": 10, "s1_emb_dim": 16, "s2_emb_dim": 32, "s3_emb_dim": 32, "s1_depth": 1,
    "s2_depth": 1, "s3_depth": 1,
}  # fmt: skip
_image = partial(Case, "vision", row=IMAGE)
VISION: dict[str, Case] = {
    **{f"timm {n}": _image(partial(_timm, n, **options)) for n, options in _TIMM.items()},
    **{f"timm {n}": Case("vision", partial(_timm, n, img_size=64), LARGER) for n in _LARGER},
    **{f"timm {n}": _image(partial(_mixer, *of)) for n, of in _MIXERS.items()},
    **{
        f"torchvision {n}": _image(partial(_torchvision, n))
        for n in (
            "squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5", "mobilenet_v3_small", "regnet_y_400mf",
        )
    },
    "torchvision VisionTransformer": _image(
        lambda: package("torchvision").models.VisionTransformer(SIDE, 8, 2, 2, 32, 64, num_classes=10)
    ),
    "torchvision SwinTransformer": _image(
        lambda: package("torchvision").models.SwinTransformer(
            [2, 2], 24, [1, 1], [2, 4], [4, 4], num_classes=10
        )
    ),
    "vit-pytorch ViT": _image(partial(_vit_pytorch, "vit", "ViT", **_VIT)),
    "vit-pytorch SimpleViT": _image(partial(_vit_pytorch, "simple_vit", "SimpleViT", **_VIT)),
    "vit-pytorch DeepViT": _image(partial(_vit_pytorch, "deepvit", "DeepViT", **_VIT)),
    "vit-pytorch CCT": _image(partial(_vit_pytorch, "cct", "CCT", **_CCT)),
    "vit-pytorch CvT": _image(partial(_vit_pytorch, "cvt", "CvT", **_CVT)),
}  # fmt: skip
