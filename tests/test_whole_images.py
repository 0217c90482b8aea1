"""The image encoders with hand-written gradients equal the plain ones: outputs and gradients."""

import pytest
import torch

from deir.algorithm import networks
from deir.algorithm.networks import ConvEncoder, GridEncoder, ImpalaEncoder
from deir.algorithm.ops import PlainOps
from deir.fast import threads, whole_images
from deir.fast.image_pass import SHELF, Shelf
from deir.fast.ops import FastOps
from deir.fast.pieces import embed_whole
from deir.fast.whole_images import embed_images, runs_on_images

ENCODERS = [
    (ConvEncoder, (64, 64, 3)),
    (ConvEncoder, (45, 50, 1)),
    (ImpalaEncoder, (64, 64, 3)),
    (ImpalaEncoder, (37, 22, 1)),
    (ImpalaEncoder, (6, 5, 4)),
]


@pytest.fixture
def double(monkeypatch):
    """The plain encoders make images single precision; here they are not to."""

    def scaled(observations: torch.Tensor) -> torch.Tensor:
        image = observations.permute(0, 3, 1, 2).double()
        return image / 255 if observations.dtype == torch.uint8 else image

    monkeypatch.setattr(networks, "scaled_image", scaled)


def an_encoder(cls, shape, norm, dtype=torch.float64):
    """With every parameter away from where it starts."""
    torch.manual_seed(0)
    encoder = cls(shape, 16, norm).to(dtype)
    for parameter in encoder.parameters():
        parameter.data += 0.1 * torch.rand_like(parameter)
    return encoder


def flat_images(count: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """Noise, and areas of one colour as games have them, in which neighbours are equal."""
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    images[:, : shape[0] // 2] = 90
    return images


def gradients(encoder, outputs, slope):
    encoder.zero_grad()
    (outputs * slope).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}


def together(found: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in found.values()])


def far(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in parts of the largest number."""
    return float((actual - expected).detach().abs().max() / expected.detach().abs().max().clamp(min=1e-30))


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize(("cls", "shape"), ENCODERS)
@pytest.mark.parametrize("count", [35, 1])
def test_outputs_and_gradients_are_those_of_the_plain_encoder(cls, shape, norm, count, double):
    encoder, images = an_encoder(cls, shape, norm), flat_images(count, shape)
    for seen in (images, images.double() / 100, images.transpose(1, 2) if shape[0] == shape[1] else images):
        expected, actual = PlainOps().embed(encoder, seen).values, FastOps().embed(encoder, seen).values
        assert far(actual, expected) < 1e-12
        slope = torch.randn_like(expected)
        wanted, found = gradients(encoder, expected, slope), gradients(encoder, actual, slope)
        for name in wanted:
            assert far(found[name], wanted[name]) < 1e-9, name
        with torch.no_grad():
            assert torch.equal(embed_images(encoder, seen), actual.detach())


@pytest.mark.parametrize(("cls", "shape"), ENCODERS[::2])
def test_single_precision_too(cls, shape):
    encoder = an_encoder(cls, shape, "layer", torch.float32)
    images = torch.randint(0, 256, (70, *shape), dtype=torch.uint8)
    expected, actual = encoder(images), embed_whole(encoder, images)
    assert far(actual, expected) < 1e-4
    slope = torch.randn_like(expected)
    wanted, found = (together(gradients(encoder, outputs, slope)) for outputs in (expected, actual))
    assert (wanted - found).norm() < 1e-3 * wanted.norm()


@pytest.mark.parametrize(("cls", "shape"), [(ConvEncoder, (45, 50, 1)), (ImpalaEncoder, (16, 16, 3))])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_bits_do_not_depend_on_the_number_of_threads_or_on_arrays_used_before(cls, shape, precision, monkeypatch):
    encoder, images = an_encoder(cls, shape, "layer", torch.float32), flat_images(150, shape)
    found = []
    for number in (1, 2, 3, 2):
        monkeypatch.setattr(threads, "_threads", number)
        for array in SHELF.free:
            array[:] = 255  # not numbers
        encoder.zero_grad()
        out = embed_images(encoder, images, precision)
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad.clone() for p in encoder.parameters())])
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@pytest.mark.parametrize(("cls", "shape"), [(ConvEncoder, (64, 64, 3)), (ImpalaEncoder, (64, 64, 3))])
def test_half_precision_is_within_its_tolerance(cls, shape):
    """Outputs within 3% of the largest, gradients within 10% of their norm and in their direction."""
    encoder, images = an_encoder(cls, shape, "layer", torch.float32), flat_images(64, shape)
    exact, rounded = embed_images(encoder, images), embed_images(encoder, images, "bf16")
    assert 0 < far(rounded, exact) < 0.03
    slope = torch.randn_like(exact)
    wanted, found = (together(gradients(encoder, outputs, slope)) for outputs in (exact, rounded))
    assert (wanted - found).norm() < 0.1 * wanted.norm()
    assert torch.cosine_similarity(wanted, found, 0) > 0.99


def test_of_equals_pooling_takes_the_first_and_what_is_not_a_number_is_passed_on():
    encoder = an_encoder(ImpalaEncoder, (8, 8, 3), "none", torch.float32)
    images = torch.zeros(20, 8, 8, 3)
    expected, actual = encoder(images), embed_images(encoder, images)
    slope = torch.randn_like(expected)
    wanted, found = gradients(encoder, expected, slope), gradients(encoder, actual, slope)
    assert all(far(found[name], wanted[name]) < 1e-4 for name in wanted)
    images[3, 4, 4, 1] = torch.nan
    assert torch.equal(embed_images(encoder, images).isnan(), encoder(images).isnan())


def test_who_is_taken(monkeypatch):
    for cls in (ConvEncoder, ImpalaEncoder):
        assert runs_on_images(cls((64, 64, 3), 8, "layer")) and runs_on_images(cls((64, 64, 3), 8, "none"))
        assert not runs_on_images(cls((64, 64, 3), 8, "batch"))
        assert not runs_on_images(cls((64, 64, 3), 8, "layer").to("meta"))
    assert not runs_on_images(GridEncoder((7, 7, 3), 8, "layer"))
    encoder, images = an_encoder(ConvEncoder, (45, 50, 1), "layer", torch.float32), flat_images(5, (45, 50, 1))
    monkeypatch.setattr(whole_images, "product", lambda dtype: None)
    assert torch.equal(embed_whole(encoder, images), encoder(images))


def test_a_shelf_lends_what_fits_once():
    shelf = Shelf()
    large, larger = shelf.take(1 << 20), shelf.take(3 << 20)
    shelf.give([large, larger])
    assert shelf.take(1 << 20) is large and shelf.take(1 << 20) is larger and shelf.free == []
    shelf.give([large])
    assert len(shelf.take(2 << 20)) == 2 << 20 and len(shelf.take(10)) == 10
    shelf.give([shelf.take(10)])
    assert shelf.free == [large]


def test_batches_of_about_the_same_size_take_the_same_arrays():
    encoder = an_encoder(ImpalaEncoder, (16, 16, 3), "layer", torch.float32)
    sizes = []
    for count in (250, 256, 240):
        embed_images(encoder, flat_images(count, (16, 16, 3))).sum().backward()
        sizes.append(sum(map(len, SHELF.free)))
    assert sizes[0] > 0 and len(set(sizes)) == 1
