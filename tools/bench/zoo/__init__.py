"""Small models of many kinds, for docs/models.md (``tools/bench/models.py``) and the exporter's tests."""

from collections.abc import Callable
from functools import partial

from tools.bench.zoo import deep, images, rows, sequences
from tools.bench.zoo.case import Case
from torch import nn

from sedge_export import models as reference


def _mlp() -> nn.Module:
    return rows.mlp(16, 32, 5)


_CIFAR, _DIGIT, _IMAGE = (3, 32, 32), (1, 28, 28), (3, 16, 16)
_SIGNAL, _AUDIO = (12, 10), (10, 24)
_image = partial(Case, "vision", row=_IMAGE)
_words = partial(Case, "text", row=(12,), classes=5, vocabulary=50)
_signal = partial(Case, "time series", row=_SIGNAL, classes=5)
_row = partial(Case, "tabular", row=(16,), classes=5)
_pixels = partial(Case, "segmentation and detection", row=_IMAGE, classes=0)
_loss = partial(Case, "losses", _mlp, (16,))


def _normed(norm: nn.Module) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), norm, nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), *deep.head(8)
        )

    return build


def _activated(act: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(16, 32), act, nn.Linear(32, 5))


# Networks whose programs are correct but would fail a check with an absolute tolerance.
DEEP: dict[str, Case] = {
    "ResNet-18": Case("vision", deep.resnet18, _CIFAR),
    "MobileNetV2, half width": Case("vision", partial(deep.mobilenet_v2, 0.5), _IMAGE),
    "EfficientNet-B0, half width": Case("vision", partial(deep.efficientnet, 0.5), _IMAGE),
    "ShuffleNetV2": Case("vision", partial(deep.shufflenet_v2, 48), _IMAGE),
    "DenseNet-BC": Case("vision", partial(deep.densenet, 8, (4, 4, 4)), _IMAGE),
}
CASES: dict[str, Case] = DEEP | {
    "AvgCNN": Case("vision", reference.avgcnn, _DIGIT),
    "ResNet-8": Case("vision", reference.resnet8, _DIGIT),
    "ResNet-8, GroupNorm": Case("vision", reference.resnet8_groupnorm, _DIGIT),
    "LeNet-5": Case("vision", images.lenet, _DIGIT),
    "ResNet-20": _image(lambda: deep.resnet(16, (3, 3, 3))),
    "VGG": Case("vision", partial(images.vgg, False), _CIFAR),
    "VGG, BatchNorm": Case("vision", images.vgg, _CIFAR),
    "MobileNetV1": _image(deep.mobilenet_v1),
    "SqueezeNet": Case("vision", images.squeezenet, _CIFAR),
    "Inception": _image(images.inception),
    "ResNeXt": _image(images.resnext),
    "ResNet, bottlenecks": _image(images.resnet_bottleneck),
    "SE-ResNet": _image(images.se_resnet),
    "ResNet-v2": _image(images.resnet_v2),
    "ConvNeXt": _image(images.convnext),
    "ConvMixer": _image(images.convmixer),
    "GhostNet": _image(images.ghostnet),
    "CBAM": _image(images.cbam),
    "ViT, class token assigned": _image(sequences.VisionTransformer),
    "MLP-Mixer": _image(sequences.mlp_mixer),
    "Pyramid of adaptive pools": _image(images.pyramid),
    "Unfold and product": _image(images.unfolded),
    "Cosine transform": _image(images.fourier),
    "BatchNorm with its own forward": _image(_normed(rows.ScaledNorm(8))),
    "CNN, dropout of channels": _image(_normed(nn.Dropout2d(0.25))),
    "LayerNorm of images": _image(_normed(nn.LayerNorm([8, 8, 8]))),
    "InstanceNorm": _image(_normed(nn.InstanceNorm2d(8, affine=True))),
    "Local response norm": _image(_normed(nn.LocalResponseNorm(3))),
    "U-Net, transposed": _pixels(partial(images.UNet, images.transposed)),
    "U-Net, nearest": _pixels(partial(images.UNet, images.upsampled("nearest"))),
    "U-Net, bilinear": _pixels(partial(images.UNet, images.upsampled("bilinear"))),
    "Autoencoder, convolutions": Case("vision", images.conv_autoencoder, _DIGIT, classes=0),
    "Super-resolution": Case("vision", images.super_resolution, (1, 12, 12), classes=0),
    "GRU": _signal(lambda: sequences.recurrent(nn.GRU(10, 16, batch_first=True), 16)),
    "LSTM": _signal(lambda: sequences.recurrent(nn.LSTM(10, 16, batch_first=True), 16)),
    "RNN": _signal(lambda: sequences.recurrent(nn.RNN(10, 16, batch_first=True), 16)),
    "LSTM, both ways, two layers": _signal(
        lambda: sequences.recurrent(
            nn.LSTM(10, 8, 2, batch_first=True, bidirectional=True), 16
        )
    ),
    "GRU, 128 steps": Case(
        "time series", lambda: sequences.recurrent(nn.GRU(10, 32, batch_first=True), 32), (128, 10), 5
    ),
    "LSTM, both ways, two layers, 64 steps": Case(
        "time series",
        lambda: sequences.recurrent(
            nn.LSTM(10, 32, 2, batch_first=True, bidirectional=True), 64
        ),
        (64, 10), 5,
    ),
    "Keyword GRU": Case("audio", partial(sequences.KeywordGru, 12), (247, 40), 12),
    "GRU cell in a loop": _signal(partial(sequences.Cell, 10, 16)),
    "Attention pooling": _signal(partial(sequences.Pooled, 10)),
    "Keyword CNN": Case("audio", sequences.keyword_cnn, _AUDIO, 5),
    "TCN, dilated": Case("time series", sequences.tcn, _AUDIO, 5),
    "Windows by unfold": Case("time series", sequences.Windows, (32,), 5),
    "Mean of words": _words(sequences.words),
    "EmbeddingBag, mean": _words(partial(sequences.bag, "mean")),
    "EmbeddingBag, sum": _words(partial(sequences.bag, "sum")),
    "EmbeddingBag, max": _words(partial(sequences.bag, "max")),
    "Transformer": _words(sequences.transformer),
    "Transformer, norm first": _words(partial(sequences.transformer, True)),
    "GPT": _words(sequences.gpt, classes=50),
    "LLaMA, rotary": _words(sequences.llama, classes=50),
    "LoRA on a frozen block": Case("adapters", sequences.lora, (12,), 5, 50),
    "MLP": _row(_mlp),
    "Logistic regression": _row(partial(nn.Linear, 16, 5)),
    "MLP, BatchNorm": _row(
        lambda: nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    ),
    "MLP, LayerNorm and GELU": _row(
        lambda: nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 5))
    ),
    "MLP, dropout": _row(
        lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 5))
    ),
    "MLP, weight norm": _row(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(16, 32)), nn.Tanh(), nn.Linear(32, 5)
        )
    ),
    "MLP, SELU": _row(partial(rows.mlp, 16, 32, 32, 5, act=nn.SELU)),
    "MLP, PReLU": _row(_activated(nn.PReLU())),
    "MLP, Mish": _row(_activated(nn.Mish())),
    "MLP, softplus": _row(_activated(nn.Softplus(2.0))),
    "MLP, hard swish": _row(_activated(nn.Hardswish())),
    "MLP, GLU": _row(lambda: nn.Sequential(nn.Linear(16, 64), nn.GLU(), nn.Linear(32, 5))),
    "MLP, softsign": _row(_activated(nn.Softsign())),
    "Maxout": _row(
        lambda: nn.Sequential(
            nn.Linear(16, 64), nn.Unflatten(1, (1, 64)), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(32, 5)
        )
    ),
    "Highway": _row(lambda: nn.Sequential(rows.Highway(16), rows.Highway(16), nn.Linear(16, 5))),
    "DCN, cross layers": _row(
        lambda: nn.Sequential(rows.CrossLayer(16), rows.CrossLayer(16), nn.Linear(16, 5))
    ),
    "Factorisation machine": _row(partial(rows.FactorisationMachine, 16, 4, 5)),
    "Mixture of experts": _row(partial(rows.Mixture, 16, 3, 5)),
    "Radial basis functions": _row(partial(rows.RadialBasis, 16, 8, 5)),
    "Cosine classifier": _row(partial(rows.Cosine, 16, 5)),
    "Rounding, autograd.Function": _row(partial(rows.Rounding, 16, 5)),
    "Slices assigned": _row(rows.Written),
    "Bilinear": _row(
        lambda: nn.Sequential(
            sequences.Through(nn.Bilinear(8, 8, 8), lambda m, x: m(x[:, :8], x[:, 8:])),
            nn.Linear(8, 5),
        )
    ),
    "Graph convolution": Case("tabular", partial(rows.Graph, 6, 4), (6, 4), 5),
    "PointNet": Case("tabular", rows.PointNet, (20, 3), 5),
    "Siamese": Case("tabular", rows.Siamese, (2, 8), 2),
    "Autoencoder": _row(partial(rows.mlp, 16, 4, 16), classes=0),
    "Label smoothing": _loss(classes=5, loss=rows.smooth_cross_entropy),
    "Class weights": _loss(classes=5, loss=rows.weighted_cross_entropy),
    "Focal loss": _loss(classes=5, loss=rows.focal),
    "Hinge": _loss(classes=5, loss=rows.hinge),
    "Multi-label": _loss(classes=0, loss=rows.multi_label),
    "Regression": _loss(classes=0),
    "Huber": _loss(classes=0, loss=rows.huber),
    "Smooth L1": _loss(classes=0, loss=rows.smooth_l1),
    "Quantile": _loss(classes=0, loss=rows.quantile),
    "Gaussian likelihood": Case(
        "losses", partial(rows.mlp, 16, 32, 6), (16,), classes=0, loss=rows.gaussian, targets=(3,)
    ),
    "Poisson likelihood": _loss(classes=0, loss=rows.poisson),
    "Volumes, 3-D convolution": Case(
        "vision",
        lambda: nn.Sequential(
            nn.Conv3d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv3d(4, 8, 3, 2, 1), nn.Flatten(),
            nn.Linear(64, 5),
        ),
        (1, 8, 8, 8), 5,
    ),
}  # fmt: skip
# Only these are also exported for ExecuTorch, because that takes many times as long.
SMALL = (
    "AvgCNN", "LeNet-5", "MLP", "MLP, BatchNorm", "MLP, LayerNorm and GELU", "MLP, dropout",
    "Logistic regression", "Transformer", "U-Net, nearest", "Autoencoder", "Slices assigned",
    "GRU",
)  # fmt: skip
