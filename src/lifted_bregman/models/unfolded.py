"""A denoiser whose layers are steps of dual forward-backward splitting, with learned filters and thresholds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lifted_bregman._arguments import positive, whole
from lifted_bregman.errors import SettingError, TensorError
from lifted_bregman.maps import Map
from lifted_bregman.models._filters import smooth_filters


class FilterBank(nn.Module):
    """L, which takes an image to its coefficients in a bank of filters, and a threshold θ_c > 0 for each filter.

        (Lx)_c = x * w_c where the filter lies inside the image,    Lᵀu = Σ_c u_c * w_c(-·)

    weight         (filters, channels, height, width), w_c
    log_threshold  (filters, 1, 1), log θ_c
    """

    def __init__(self, weight: Tensor, noise: float) -> None:
        """Thresholds begin at 1.5 times the standard deviation that noise of this level has in each coefficient."""
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.log_threshold = nn.Parameter((1.5 * noise * weight.flatten(1).norm(dim=1)).log().view(-1, 1, 1))

    @property
    def threshold(self) -> Tensor:
        """θ, (filters, 1, 1)."""
        return self.log_threshold.exp()

    # Products with the matrix of all patches: on a CPU a training step takes 0.7 of the time of torch's convolutions,
    # and the two methods are transposes of each other by construction.

    def analyse(self, x: Tensor) -> Tensor:
        """Lx, (samples, filters, height - kernel + 1, width - kernel + 1), for x (samples, channels, height, width)."""
        kernel = self.weight.shape[2:]
        rows = self.weight.flatten(1).expand(len(x), -1, -1)
        sizes = [n - k + 1 for n, k in zip(x.shape[2:], kernel, strict=True)]
        u: Tensor = torch.bmm(rows, F.unfold(x, kernel)).unflatten(2, sizes)
        return u

    def synthesise(self, u: Tensor) -> Tensor:
        """Lᵀu, (samples, channels, height, width), for coefficients u (samples, filters, ...)."""
        kernel = self.weight.shape[2:]
        columns = self.weight.flatten(1).t().expand(len(u), -1, -1)
        sizes = tuple(n + k - 1 for n, k in zip(u.shape[2:], kernel, strict=True))
        return F.fold(torch.bmm(columns, u.flatten(2)), sizes, kernel)


class DualStep(nn.Module):
    """v - (τ/θ) L(Lᵀ(θv) - z): a gradient step on ½‖Lᵀu - z‖² from u = θv, divided by θ.  Without v it starts at 0.

    bank      the filters L and their thresholds θ
    log_step  log τ, ()
    padding   pixels (top, left) by which the image is mirrored beyond its edges to give z
    """

    def __init__(self, bank: FilterBank, log_step: nn.Parameter, padding: Sequence[int]) -> None:
        super().__init__()
        self.bank, self.log_step, self.padding = bank, log_step, tuple(padding)

    def forward(self, image: Tensor, v: Tensor | None = None) -> Tensor:
        """The step before the projection, (samples, filters, ...), for images and v in [-1, 1]."""
        if v is None:
            _require_images(image, self.bank.weight, self.padding)
        z, threshold = _mirrored(image, self.padding), self.bank.threshold
        rate = self.log_step.exp() / threshold
        if v is None:
            return rate * self.bank.analyse(z)
        return torch.addcmul(v, rate, self.bank.analyse(z - self.bank.synthesise(threshold * v)))


class PrimalImage(nn.Module):
    """The denoised image z - Lᵀ(θv), for the dual variable u = θv and the noisy image z.

    bank     the filters L and their thresholds θ
    padding  pixels (top, left) by which `DualStep` mirrors the image; Lᵀ(θv) is cropped by them to the size of z
    """

    def __init__(self, bank: FilterBank, padding: Sequence[int]) -> None:
        super().__init__()
        self.bank, self.padding = bank, tuple(padding)

    def forward(self, image: Tensor, v: Tensor) -> Tensor:
        """The denoised images, in the shape of `image` (samples, channels, height, width), for v in [-1, 1]."""
        (top, left), (height, width) = self.padding, image.shape[2:]
        noise = self.bank.synthesise(self.bank.threshold * v)
        return image - noise[..., top : top + height, left : left + width]


class UnfoldedDenoiser(nn.Module):
    """An unfolded proximal network that removes noise from images.

    It unrolls dual forward-backward splitting for x = argmin_x ½‖x - z‖² + Σ_c θ_c‖(Lx)_c‖₁, whose dual variable u has
    |u_c| <= θ_c, and gives each step its own filters L_k, thresholds θ_k and step size τ_k:

        u_{k+1} = prox_{τ_k g_k*}( u_k - τ_k L_k(L_kᵀu_k - z) ) ,   u_0 = 0 ,    x = z - L_Kᵀu_K .

    g_k = Σ_c θ_kc‖·‖₁, so that the proximal map is the projection to |u_c| <= θ_kc.  The variable between two layers is
    v = u/θ_k, and the projection is that to [-1, 1], `nn.Hardtanh`: thresholds are parameters of maps, and the
    potential of the activation has none.  Where θ_{k+1} is not θ_k, a layer starts from u = θ_{k+1}v.

    It is an ordinary module: `lb.lift` reads each layer as one term, `lb.lifted_backward` lifts the projections, and
    autograd can train it.  Images may have any height and width of at least the size of a filter.

    With `shared=True` all layers have the same filters, thresholds and step size.  For τ‖L‖² < 2 every layer is then
    nonexpansive, and the output converges to the minimiser x as layers are added; so it does at initialisation, where
    ‖L‖ <= 1 and τ = 1.

    Args:
        layers: K >= 1, the number of steps.
        filters: coefficients of each pixel.
        kernel_size: height and width of a filter, a number or a pair.
        channels: of the images, 1 for grey and 3 for colour.
        shared: whether all layers have the same parameters.
        noise: standard deviation > 0 of the noise, in the unit of the pixels.  Thresholds begin at 1.5 times that of
            the noise in each coefficient.
        padding: pixels by which images are mirrored beyond their edges; None for half a filter.

    The filters start as an orthonormal basis of the filters without mean (a cosine transform, low frequencies first),
    filled up by random ones, scaled to ‖L‖ <= 1.

    Example:
        >>> model = lb.models.UnfoldedDenoiser(layers=3, filters=8, kernel_size=5)
        >>> images = torch.rand(2, 1, 16, 20)
        >>> model(images).shape
        torch.Size([2, 1, 16, 20])
        >>> print(lb.lift(model, loss=lb.SquaredError(), example=images))
        LiftedProblem of 4 layers, 835 parameters of float32 on cpu
          1: model.steps.0 (Map), 209 parameters, Box(low=-1.0, high=1.0), λ = 1
          2: model.steps.1 (Map), 209 parameters, Box(low=-1.0, high=1.0), λ = 1
          3: model.steps.2 (Map), 209 parameters, Box(low=-1.0, high=1.0), λ = 1
          4: model.primal (Map), 208 parameters, loss SquaredError(Identity(), reduction='mean')
    """

    def __init__(
        self,
        layers: int = 10,
        filters: int = 48,
        kernel_size: int | tuple[int, int] = 7,
        *,
        channels: int = 1,
        shared: bool = False,
        noise: float = 0.1,
        padding: int | tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        layers, filters = whole(layers, "layers"), whole(filters, "filters")
        kernel = _pair(kernel_size, "kernel_size", least=1)
        pad = tuple(k // 2 for k in kernel) if padding is None else _pair(padding, "padding", least=0)
        weight = smooth_filters(filters, whole(channels, "channels"), kernel)
        positive(noise, "noise")
        banks = [FilterBank(weight.clone(), noise) for _ in range(1 if shared else layers + 1)]
        rates = [nn.Parameter(torch.zeros(())) for _ in range(1 if shared else layers)]
        self.steps = nn.ModuleList(
            Map(DualStep(banks[k % len(banks)], rates[k % len(rates)], pad)) for k in range(layers)
        )
        self.project = nn.Hardtanh()
        self.primal = Map(PrimalImage(banks[-1], pad))

    def forward(self, image: Tensor) -> Tensor:
        """The denoised images, for noisy ones (samples, channels, height, width)."""
        v = self.project(self.steps[0](image))
        for step in self.steps[1:]:
            v = self.project(step(image, v))
        x: Tensor = self.primal(image, v)
        return x


def _mirrored(image: Tensor, padding: Sequence[int]) -> Tensor:
    top, left = padding
    return F.pad(image, (left, left, top, top), mode="reflect") if top or left else image


def _pair(size: int | tuple[int, int], name: str, least: int) -> tuple[int, int]:
    if isinstance(size, tuple):
        if len(size) != 2:
            raise SettingError(f"{name} is {size!r}; it must be a number, or a pair (height, width).")
        return whole(size[0], name, least), whole(size[1], name, least)
    return whole(size, name, least), whole(size, name, least)


def _require_images(image: Tensor, weight: Tensor, padding: Sequence[int]) -> None:
    """Raises unless the images fit the filters in dtype and channels, have four dimensions, and room for a filter."""
    _, channels, *kernel = weight.shape
    if not isinstance(image, Tensor):
        raise TensorError(
            f"the images are a {type(image).__name__}; UnfoldedDenoiser takes a tensor with pixels from 0 to 1: use "
            f"torch.as_tensor(images, dtype={weight.dtype})."
        )
    if not image.is_floating_point():
        raise TensorError(
            f"the images are {image.dtype}; UnfoldedDenoiser takes {weight.dtype} with pixels from 0 to 1: use "
            f"images.to({weight.dtype}) / 255 if the pixels are from 0 to 255."
        )
    if image.dtype != weight.dtype and not torch.is_autocast_enabled(image.device.type):
        raise TensorError(
            f"the images are {image.dtype} and the denoiser's parameters are {weight.dtype}: use "
            f"images.to({weight.dtype})."
        )
    if image.ndim != 4:
        raise TensorError(
            f"the images have shape {tuple(image.shape)}; UnfoldedDenoiser takes (samples, channels, height, width): "
            "add the missing dimensions by images.view(-1, channels, height, width)."
        )
    if image.shape[1] != channels:
        raise TensorError(
            f"the images have {image.shape[1]} channels and the denoiser {channels}: build "
            f"UnfoldedDenoiser(channels={image.shape[1]}), or give images of {channels} (1 is grey, 3 is colour)."
        )
    least = [max(k - 2 * p, p + 1) for k, p in zip(kernel, padding, strict=True)]
    if any(n < m for n, m in zip(image.shape[2:], least, strict=True)):
        raise TensorError(
            f"the images have {image.shape[2]} x {image.shape[3]} pixels, too few for filters of {kernel[0]} x "
            f"{kernel[1]}: give at least {least[0]} x {least[1]}, or a smaller kernel_size."
        )
