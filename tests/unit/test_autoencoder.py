"""SAC-AE's decoder and loss against plain code and numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kstep.auxiliary.autoencoder import Autoencoder, AutoencoderConfig
from kstep.auxiliary.base import AuxiliaryConfig, Shapes
from kstep.nets.decoder import Decoder
from kstep.nets.encoder import PixelEncoder, PixelEncoderConfig
from kstep.types import KstepError, SequenceBatch
from kstep.values import check
from tests.make import expect

PAPER = (2, 1, 1, 1)
COMPACT = (2, 2, 1, 1)
DEFAULT = AutoencoderConfig()


def decoder_for(
    size: tuple[int, int],
    strides: tuple[int, ...] = PAPER,
    channels: int = 32,
    colours: int = 3,
    stack: int = 3,
) -> tuple[PixelEncoder, Decoder]:
    config = PixelEncoderConfig(strides=strides, channels=channels)
    encoder = PixelEncoder(config, (*size, colours), stack)
    decoder = Decoder(encoder.latent_dim, encoder.map_shapes, (stack, *size, colours))
    return encoder, decoder


def small(config: AutoencoderConfig = DEFAULT, seed: int = 0) -> tuple[Autoencoder, PixelEncoder]:
    """The task on two stacked 12x12 frames, and an encoder that fits."""
    torch.manual_seed(seed)
    shape = PixelEncoderConfig(strides=(2, 1), channels=16, latent_dim=5)
    encoder = PixelEncoder(shape, (12, 12, 3), 2)
    task = config.build(
        Shapes(
            latent_dim=5,
            feature_shape=encoder.feature_shape,
            action_dim=1,
            observation_shape=(2, 12, 12, 3),
            ema_rate=0.05,
            map_shapes=encoder.map_shapes,
        )
    )
    assert isinstance(task, Autoencoder)
    return task, encoder


def frames(number: int = 4, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (number, 2, 12, 12, 3), dtype=torch.uint8, generator=generator)


def batch(observation: Tensor) -> SequenceBatch:
    number = len(observation)
    return SequenceBatch(
        observation=torch.stack((observation, 255 - observation), dim=1),
        action=torch.zeros(number, 1, 1),
        reward=torch.zeros(number, 1),
        bootstrap=torch.ones(number, 1),
        second_view=observation,
    )


def unused(observation: Tensor) -> Tensor:
    raise AssertionError("the slow encoder is not used")


def test_the_decoder_has_the_papers_size() -> None:
    encoder, decoder = decoder_for((84, 84))
    assert encoder.map_shapes == ((41, 41, 32), (39, 39, 32), (37, 37, 32), (35, 35, 32))
    linear, inner, last = 39_200 * 51, 3 * (32 * 32 * 9 + 32), 32 * 9 * 9 + 9
    assert sum(p.numel() for p in decoder.parameters()) == linear + inner + last
    layers = list(decoder.convolutions)
    assert [layer.stride for layer in layers] == [(1, 1)] * 3 + [(2, 2)]
    assert [layer.output_padding for layer in layers] == [(0, 0)] * 3 + [(1, 1)]
    assert decoder(torch.zeros(2, 50)).shape == (2, 84, 84, 9)


@pytest.mark.parametrize("size", [(84, 84), (36, 36), (37, 37), (64, 48), (35, 84)])
@pytest.mark.parametrize("strides", [PAPER, COMPACT, (3, 1), (1,), (4, 2)])
def test_the_decoder_leads_back_through_the_same_sizes(
    size: tuple[int, int], strides: tuple[int, ...]
) -> None:
    encoder, decoder = decoder_for(size, strides, channels=2)
    x = torch.zeros(1, 2, *encoder.feature_shape[:2])
    sides = [tuple(shape[:2]) for shape in reversed(encoder.map_shapes)]
    for layer, expected, stride in zip(
        decoder.convolutions, [*sides[1:], size], reversed(strides), strict=True
    ):
        x = layer(x)
        assert x.shape[2:] == expected
        assert layer.stride == (stride, stride)
    assert decoder(torch.zeros(2, 50)).shape == (2, *size, 9)


def test_a_map_so_small_that_strides_are_ambiguous_still_leads_back() -> None:
    for size in range(5, 16):
        encoder, decoder = decoder_for((size, size + 1), (1, 4), channels=2)
        assert decoder(torch.zeros(1, 50)).shape == (1, size, size + 1, 9), encoder.map_shapes


def test_other_stacks_and_colours() -> None:
    _, decoder = decoder_for((36, 36), COMPACT, channels=2, colours=1, stack=4)
    assert decoder(torch.zeros(1, 50)).shape == (1, 36, 36, 4)


def test_the_decoder_equals_plain_transposed_convolutions() -> None:
    """The layout changes nothing: compare with textbook NCHW code on float64."""
    torch.manual_seed(0)
    encoder, _ = decoder_for((36, 36), COMPACT, channels=4)
    decoder = Decoder(50, encoder.map_shapes, (3, 36, 36, 3), init="default")
    latent = torch.randn(2, 50)
    x = latent.double() @ decoder.linear.weight.double().T + decoder.linear.bias.double()
    # (H, W, C) is the order of the linear layer's outputs.
    x = torch.relu(x).reshape(2, *encoder.feature_shape).permute(0, 3, 1, 2).contiguous()
    for i, module in enumerate(decoder.convolutions):
        layer = expect(nn.ConvTranspose2d, module)
        weight, bias = layer.weight.double().contiguous(), layer.get_parameter("bias").double()
        x = nn.functional.conv_transpose2d(
            x, weight, bias, layer.stride, output_padding=layer.output_padding
        )
        x = torch.relu(x) if i < 3 else x
    found = decoder(latent)
    assert torch.allclose(found.double(), x.permute(0, 2, 3, 1), atol=1e-5)
    assert found.is_contiguous()
    assert found.min() < 0  # the last layer is linear


def test_the_far_edge_of_an_even_picture_is_one_colour() -> None:
    """Output padding is all that reaches pixel 83: 40 * 2 + 3 = 83 of them have an input."""
    encoder, _ = decoder_for((84, 84))
    decoder = Decoder(50, encoder.map_shapes, (3, 84, 84, 3), init="default")
    with torch.no_grad():
        found = decoder(torch.randn(1, 50))[0]
    bias = decoder.convolutions[-1].get_parameter("bias")
    assert torch.equal(found[83], bias.expand(84, 9))
    assert torch.equal(found[:, 83], bias.expand(84, 9))
    assert found[82].std(0).min() > 0


def test_delta_orthogonal_reaches_the_transposed_convolutions() -> None:
    _, decoder = decoder_for((36, 36))
    for layer in decoder.convolutions:
        weight = layer.get_parameter("weight").detach().clone()
        centre = weight[:, :, 1, 1].clone()
        weight[:, :, 1, 1] = 0
        assert weight.abs().max() == 0
        assert torch.allclose(centre.T @ centre, 2 * torch.eye(centre.shape[1]), atol=1e-5)
        assert layer.get_parameter("bias").abs().max() == 0


def test_targets_have_five_bits_and_noise_below_them() -> None:
    task, _ = small()
    observation = torch.zeros(1, 2, 12, 12, 3, dtype=torch.uint8)
    values = torch.tensor([0, 7, 8, 127, 128, 247, 248, 255], dtype=torch.uint8)
    by_hand = torch.tensor([0, 0, 1, 15, 16, 30, 31, 31]) / 32 - 0.5
    observation[0, 1, 3, :8, 2] = values
    target = task.target(observation)
    assert target.shape == (1, 12, 12, 6)
    found = target[0, 3, :8, 5]  # second frame, third colour
    assert ((found - by_hand) >= 0).all()
    assert ((found - by_hand) < 1 / 32).all()
    target[0, 3, :8, 5] = -0.5
    assert (target >= -0.5).all()
    assert (target < -0.5 + 1 / 32).all()


def test_targets_cover_their_range_evenly() -> None:
    """Every byte equally often: dequantized, they are uniform in [-1/2, 1/2)."""
    task, _ = small()
    observation = (torch.arange(54 * 256) % 256).view(16, 2, 12, 12, 3).to(torch.uint8)
    target = task.target(observation)
    assert target.min() >= -0.5
    assert target.max() < 0.5
    assert target.mean().item() == pytest.approx(0.0, abs=0.01)
    assert target.var().item() == pytest.approx(1 / 12, abs=0.005)
    levels = (target + 0.5) * 32
    assert (levels - levels.floor()).mean().item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("bits", [1, 8])
def test_other_numbers_of_bits(bits: int) -> None:
    task, _ = small(AutoencoderConfig(bits=bits))
    observation = frames(1)
    expected = torch.cat(observation.unbind(1), -1).float().div(256).mul(2**bits).floor()
    difference = task.target(observation) - (expected / 2**bits - 0.5)
    assert difference.min() >= -1e-7
    assert difference.max() <= 2**-bits


@pytest.mark.parametrize("bits", [0, 9])
def test_bits_that_no_pixel_has_are_refused(bits: int) -> None:
    with pytest.raises(KstepError, match=f"bits must be at .*, not {bits}"):
        check(AutoencoderConfig(bits=bits))


def test_a_state_vector_is_refused() -> None:
    shapes = Shapes(
        latent_dim=4, feature_shape=(4,), action_dim=1, observation_shape=(1, 4), ema_rate=0.05
    )
    with pytest.raises(KstepError, match="convolutional encoder"):
        AutoencoderConfig().build(shapes)


def test_the_loss_by_hand() -> None:
    """With a decoder that always answers 0.25, and latents of known length."""
    task, _ = small(AutoencoderConfig(latent_penalty=0.1))
    for parameter in task.decoder.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        task.decoder.convolutions[-1].get_parameter("bias").fill_(0.25)
    latents = torch.tensor([[3.0, 0, 0, 0, 4.0], [0, 1.0, 0, 0, 0]])  # halved squares: 12.5, 0.5
    observation = frames(2)
    saved = task.draws.count.clone()
    target = task.target(observation).double()
    task.draws.count.copy_(saved)
    loss, metrics = task.loss(lambda _: latents, lambda _: latents, batch(observation))
    reconstruction = ((target - 0.25) ** 2).sum().item() / (2 * 12 * 12 * 6)
    assert metrics["auxiliary/reconstruction"].item() == pytest.approx(reconstruction, rel=1e-5)
    assert metrics["auxiliary/latent_penalty"].item() == pytest.approx(6.5)
    assert loss.item() == pytest.approx(reconstruction + 0.65, rel=1e-5)
    assert metrics["auxiliary/loss"].item() == loss.item()


def test_a_grey_picture_is_reconstructed_up_to_the_noise() -> None:
    """The best constant for pixels 128..135 is 1/64, and what remains is the noise's variance."""
    task, _ = small(AutoencoderConfig(latent_penalty=0.0))
    for parameter in task.decoder.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        task.decoder.convolutions[-1].get_parameter("bias").fill_(1 / 64)
    grey = torch.full((16, 2, 12, 12, 3), 130, dtype=torch.uint8)
    loss, _ = task.loss(lambda _: torch.zeros(16, 5), unused, batch(grey))
    assert loss.item() == pytest.approx(1 / 12 / 32**2, rel=0.03)


def test_encoder_and_decoder_learn() -> None:
    task, encoder = small()
    loss, metrics = task.loss(encoder, unused, batch(frames()))
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in [*encoder.named_parameters(), *task.decoder.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    assert not any(value.requires_grad for value in metrics.values())


def test_the_penalty_reaches_the_latent() -> None:
    """With the decoder dead, the gradient is the latent itself times weight over batch."""
    task, _ = small(AutoencoderConfig(latent_penalty=0.5))
    for parameter in task.decoder.parameters():
        nn.init.zeros_(parameter)
    latents = torch.randn(4, 5, requires_grad=True)
    loss, _ = task.loss(lambda _: latents, unused, batch(frames()))
    (gradient,) = torch.autograd.grad(loss, latents)
    assert torch.allclose(gradient, 0.5 * latents / 4)


def test_learning_tells_pictures_apart() -> None:
    """What remains is little more than the noise, but for the edge that the encoder drops."""
    task, encoder = small()
    observation = torch.full((2, 2, 12, 12, 3), 20, dtype=torch.uint8)
    observation[0, :, :6] = 220
    observation[1, :, :, :6] = 220
    adam = torch.optim.Adam([*encoder.parameters(), *task.parameters()], lr=1e-2)
    for _ in range(150):
        loss, _ = task.loss(encoder, unused, batch(observation))
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    with torch.no_grad():
        error = (task.decoder(encoder(observation)) - task.target(observation)).square()
    assert error[:, :11, :11].mean() < 0.01


def test_noise_differs_between_calls_and_goes_on_after_a_checkpoint() -> None:
    task, encoder = small()
    views = batch(frames())
    first, _ = task.loss(encoder, unused, views)
    saved = {key: value.clone() for key, value in task.state_dict().items()}
    second, _ = task.loss(encoder, unused, views)
    third, _ = task.loss(encoder, unused, views)
    assert len({first.item(), second.item(), third.item()}) == 3

    resumed, _ = small(seed=1)
    resumed.load_state_dict(saved)
    assert torch.equal(resumed.loss(encoder, unused, views)[0], second)
    assert torch.equal(resumed.loss(encoder, unused, views)[0], third)


def test_noise_is_the_runs_own_and_leaves_the_global_generator_alone() -> None:
    one, again, other = small(seed=0)[0], small(seed=0)[0], small(seed=1)[0]
    before = torch.random.get_rng_state()
    target = one.target(frames())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(again.target(frames()), target)
    assert not torch.equal(other.target(frames()), target)


def test_what_the_task_tells_the_agent() -> None:
    config = AutoencoderConfig()
    task, _ = small(replace(config, decoder_weight_decay=2e-7))
    assert (config.horizon, config.second_view, task.sees) == (0, False, "latent")
    assert task.learned() == {"decoder": task.decoder}
    assert task.weight_decays() == {"decoder": 2e-7}
    assert {name.split(".")[0] for name, _ in task.named_parameters()} == {"decoder"}
    assert (config.latent_penalty, config.decoder_weight_decay, config.bits) == (1e-6, 1e-7, 5)
    assert AuxiliaryConfig.kinds["autoencoder"] is AutoencoderConfig
    assert config.shrunk() == config
