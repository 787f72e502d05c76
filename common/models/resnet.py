"""ResNet-18 with an exit after each of its four stages."""

from __future__ import annotations

from torch import Tensor, nn

from common.data.spec import DataSpec
from common.models.base import GlobalAveragePool, Network


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm around a shortcut (arXiv 1512.03385, Fig. 5).

    Where the shape changes, the shortcut is a 1x1 convolution with BatchNorm.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False),
                nn.BatchNorm2d(channels),
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps (N, channels, height / stride, width / stride), rounded up."""
        out: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return out


def resnet18(spec: DataSpec) -> Network:
    """Build the ResNet-18 of X-FED (Sec. 5): 4 exits, 557.94 M MACs at 32x32 pixels.

    CIFAR stem (3x3 convolution with stride 1, no max-pool) and four stages of two
    :class:`BasicBlock`; an exit is global average pooling and a linear layer. Any image
    size works. Below 9 pixels the last maps are 1x1, where BatchNorm can train on
    batches of two and more only.
    """
    stem = [
        nn.Conv2d(spec.shape[0], 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
    ]
    blocks = [
        nn.Sequential(*stem, BasicBlock(64, 64, 1), BasicBlock(64, 64, 1)),
        nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1)),
        nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1)),
        nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1)),
    ]
    exits = [nn.Linear(width, spec.num_classes) for width in (64, 128, 256, 512)]
    return Network(blocks, exits, GlobalAveragePool())
