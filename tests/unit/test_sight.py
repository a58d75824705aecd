"""What an agent sees: images of every form become the same frames, or are refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from kstep import packing
from kstep.cli import main
from kstep.config import resolve
from kstep.envs import EnvConfig, make, spec_of
from kstep.envs.sight import Sight, Unseen, drawn, look, resized
from kstep.types import Array, KstepError
from kstep.values import decode, encode

IMPORTABLE = Path(__file__).parents[1] / "faults" / "importable"
RNG = np.random.default_rng(0)
PICTURE: Array = RNG.integers(0, 256, (12, 20, 3)).astype(np.uint8)
GREY = PICTURE[..., :1]
BYTES: dict[str, Any] = {"low": 0, "high": 255, "dtype": np.uint8}
FLOATS: dict[str, Any] = {"low": 0.0, "high": 1.0, "dtype": np.float32}

FORMS: dict[str, tuple[Any, Any, Array]] = {
    "colour": (spaces.Box(shape=(12, 20, 3), **BYTES), PICTURE, PICTURE),
    "channels first": (spaces.Box(shape=(3, 12, 20), **BYTES), PICTURE.transpose(2, 0, 1), PICTURE),
    "grey": (spaces.Box(shape=(12, 20), **BYTES), GREY[..., 0], GREY),
    "one channel": (spaces.Box(shape=(12, 20, 1), **BYTES), GREY, GREY),
    "one channel first": (spaces.Box(shape=(1, 12, 20), **BYTES), GREY.transpose(2, 0, 1), GREY),
    "floats": (spaces.Box(shape=(12, 20, 3), **FLOATS), (PICTURE / 255).astype("f"), PICTURE),
    "double grey": (spaces.Box(0, 1, (12, 20), np.float64), GREY[..., 0] / 255, GREY),
    "floats to 255": (spaces.Box(0, 255, (12, 20, 3), np.float32), PICTURE.astype("f"), PICTURE),
    "integers": (spaces.Box(0, 255, (12, 20, 3), np.int64), PICTURE.astype(np.int64), PICTURE),
    "zeros and ones": (spaces.Box(0, 1, (12, 20), np.uint8), GREY[..., 0] % 2, GREY % 2 * 255),
    "stack of greys": (
        spaces.Box(shape=(4, 12, 20), **BYTES),
        np.stack([GREY[..., 0] + t for t in range(4)]),
        np.concatenate([GREY + t for t in range(4)], axis=2),
    ),
    "stack of greys last": (
        spaces.Box(shape=(12, 20, 4), **BYTES),
        np.concatenate([GREY + t for t in range(4)], axis=2),
        np.concatenate([GREY + t for t in range(4)], axis=2),
    ),
    "stack of colours": (
        spaces.Box(shape=(2, 12, 20, 3), **BYTES),
        np.stack([PICTURE, PICTURE + 1]),
        np.concatenate([PICTURE, PICTURE + 1], axis=2),
    ),
    "stack of colours first": (
        spaces.Box(shape=(2, 3, 12, 20), **BYTES),
        np.stack([PICTURE, PICTURE + 1]).transpose(0, 3, 1, 2),
        np.concatenate([PICTURE, PICTURE + 1], axis=2),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_images_are_converted_exactly(form: str) -> None:
    space, given, frame = FORMS[form]
    assert given in space
    sight = look(space, "pixels", size=84, resize="none")
    np.testing.assert_array_equal(sight.frame(given), frame)
    assert sight.shape == frame.shape
    assert sight.frame(given).dtype == np.uint8
    again: Sight = decode(Sight, encode(sight))
    assert again == sight
    np.testing.assert_array_equal(again.frame(given), frame)


@pytest.mark.parametrize("form", FORMS)
def test_images_are_converted_in_dictionaries_too(form: str) -> None:
    space, given, frame = FORMS[form]
    numbers = spaces.Box(-1.0, 1.0, (3,))
    inside = spaces.Dict({"numbers": numbers, "eye": space})
    seen = {"numbers": np.array([0.5, -1.0, 1e-3]), "eye": given}
    alone = look(inside, "pixels", size=84, resize="none", vector="none")
    np.testing.assert_array_equal(alone.frame(seen), frame)
    assert 'observation["eye"]' in str(alone)
    assert str(alone).endswith("not seen: numbers")
    both = look(inside, "pixels", size=84, resize="none")
    assert str(both).endswith("and beside it numbers: 3 numbers")
    packed = both.frame(seen)
    assert packed.shape == both.shape
    image, vector = packing.unpack(packed, 3)
    np.testing.assert_array_equal(image, frame)
    np.testing.assert_array_equal(vector, seen["numbers"].astype(np.float32))


def test_a_frame_is_a_new_array() -> None:
    space, given, _ = FORMS["colour"]
    kept = given.copy()
    look(space, "pixels", size=84, resize="none").frame(given)[:] = 0
    np.testing.assert_array_equal(given, kept)


@pytest.mark.parametrize(
    ("own", "resize", "frame"),
    [
        ((120, 160), None, (84, 112)),
        ((160, 120), None, (112, 84)),
        ((50, 50), None, (84, 84)),
        ((30, 60), None, (84, 168)),
        ((120, 160), "square", (84, 84)),
        ((120, 160), "84x100", (84, 100)),
        ((120, 160), "none", (120, 160)),
    ],
)
def test_the_shape_is_kept_unless_another_is_asked_for(
    own: tuple[int, int], resize: str | None, frame: tuple[int, int]
) -> None:
    space = spaces.Box(shape=(*own, 3), **BYTES)
    sight = look(space, "pixels", size=84, resize=resize)
    assert sight.shape == (*frame, 3)
    image = RNG.integers(0, 256, (*own, 3)).astype(np.uint8)
    np.testing.assert_array_equal(sight.frame(image), resized(image, *frame))
    own_size, seen = "x".join(map(str, own)), "x".join(map(str, frame))
    assert str(sight) == "sees: observation, " + (
        own_size if own == frame else f"{own_size} -> {seen}, area resize"
    )


def test_other_numbers_of_channels_are_resized_alike() -> None:
    image = RNG.integers(0, 256, (40, 60, 6)).astype(np.uint8)
    halves = [resized(image[..., :3], 21, 33), resized(image[..., 3:], 21, 33)]
    np.testing.assert_array_equal(resized(image, 21, 33), np.concatenate(halves, axis=2))


def test_several_images_are_seen_side_by_side_as_channels() -> None:
    space = spaces.Dict(
        {"left": FORMS["colour"][0], "right": spaces.Box(shape=(1, 24, 40), **BYTES)}
    )
    seen = {"left": PICTURE, "right": np.full((1, 24, 40), 7, np.uint8)}
    sight = look(space, "pixels", size=12)
    frame = sight.frame(seen)
    assert frame.shape == sight.shape == (12, 20, 4)
    np.testing.assert_array_equal(frame[..., :3], PICTURE)
    assert (frame[..., 3] == 7).all()
    one = look(space, "pixels", size=12, image="right")
    np.testing.assert_array_equal(one.frame(seen), frame[..., 3:])
    both = look(space, "pixels", size=12, image="right,left")
    assert both.frame(seen)[0, 0, 0] == 7


def test_the_line_says_where_the_picture_is_from() -> None:
    lines = {
        form: str(look(space, "pixels", size=12)).removeprefix("sees: ")
        for form, (space, _, _) in FORMS.items()
    }
    assert lines["colour"] == "observation, 12x20"
    assert lines["channels first"] == "observation (channels first), 12x20"
    assert lines["grey"] == "observation, 12x20, grey"
    assert lines["floats"] == "observation (floats from 0 to 1), 12x20"
    assert lines["stack of greys"] == "observation (channels first), 12x20, 4 channels"
    assert lines["stack of colours"] == "observation (2 stacked frames), 12x20, 6 channels"
    assert str(drawn("pixels", 84, None, 5)) == "sees: render(), 84x84"
    assert str(drawn("state", 84, None, 5)) == "sees: the state, 5 numbers"


def screen() -> Array:
    return np.zeros((40, 60, 3), np.uint8)


def test_it_is_rendered_if_asked_for_or_if_there_is_no_image() -> None:
    asked = look(FORMS["colour"][0], "pixels", size=20, image="render", render=screen)
    assert str(asked) == "sees: render(), 40x60 -> 20x30, area resize"
    assert asked.frame(screen()).shape == (20, 30, 3)
    vector = spaces.Box(-1.0, 1.0, (3,))
    needed = look(vector, "pixels", size=20, render=screen)
    assert str(needed).startswith(
        "sees: render(), 40x60 -> 20x30, area resize; no image in the obs"
    )
    table = spaces.Box(-np.inf, np.inf, (20, 30))
    assert look(table, "pixels", size=20, render=screen).source == "render"
    with pytest.raises(Unseen, match="shows no image"):
        look(vector, "pixels", size=20)


UNCLEAR: dict[str, tuple[Any, str]] = {
    "any range": (spaces.Box(-np.inf, np.inf, (84, 84, 3)), "between 0 and 1, or 0 and 255"),
    "minus one to one": (spaces.Box(-1.0, 1.0, (3, 84, 84)), "between 0 and 1, or 0 and 255"),
    "either way": (spaces.Box(shape=(10, 84, 10), **BYTES), "could be the first axis or the last"),
    "tiny": (spaces.Box(shape=(7, 7, 3), **BYTES), "at least 8x8 pixels"),
    "volume": (spaces.Box(shape=(64, 64, 64), **BYTES), "at most 16 channels"),
    "tuple": (spaces.Tuple([FORMS["colour"][0]]), "nested"),
}


@pytest.mark.parametrize("form", UNCLEAR)
def test_what_is_not_certain_is_refused_by_name(form: str) -> None:
    space, why = UNCLEAR[form]
    for given, name in ((space, "observation"), (spaces.Dict({"eye": space}), r"\['eye'\]")):
        with pytest.raises(Unseen, match=rf"{name}.*{why}.*env\.image=render"):
            look(given, "pixels", size=84, render=screen)
        assert look(given, "pixels", size=84, image="render", render=screen).source == "render"
    beside = spaces.Dict({"odd": space, "eye": FORMS["colour"][0]})
    with pytest.raises(Unseen, match="odd"):
        look(beside, "pixels", size=84)
    assert look(beside, "pixels", size=84, image="eye").pictures[0].key == "eye"


def test_wrong_choices_are_refused_with_what_there_is() -> None:
    space = spaces.Dict({"eye": FORMS["colour"][0], "arm": spaces.Box(-1.0, 1.0, (3,))})
    with pytest.raises(
        Unseen, match=r"no 'ear' for env.image=ear; its observation has 'arm', 'eye'"
    ):
        look(space, "pixels", size=84, image="ear")
    with pytest.raises(Unseen, match="no image in 'arm'"):
        look(space, "pixels", size=84, image="arm")
    with pytest.raises(Unseen, match="no keys"):
        look(FORMS["colour"][0], "pixels", size=84, image="eye")


@pytest.mark.parametrize(
    ("form", "given", "sentence"),
    [
        ("colour", PICTURE[:11], r"\(11, 20, 3\) uint8; needed is \(12, 20, 3\)"),
        ("colour", PICTURE / 255, "float64; needed is .* of whole numbers"),
        ("colour", PICTURE.astype(int) - 1, "values from -1 to"),
        ("colour", None, r"\(\) object"),
        ("colour", [[1], [2, 3]], "no array"),
        ("floats", PICTURE, "uint8; needed is .* of floats"),
        ("floats", PICTURE.astype("f"), "values from 0 to 255; needed are floats from 0 to 1"),
        ("floats", np.full((12, 20, 3), np.nan), "values from nan"),
        ("zeros and ones", GREY[..., 0], "whole numbers from 0 to 1"),
    ],
)
def test_observations_that_are_not_as_described_are_refused(
    form: str, given: Any, sentence: str
) -> None:
    with pytest.raises(Unseen, match=sentence):
        look(FORMS[form][0], "pixels", size=84).frame(given)
    inside = look(spaces.Dict({"eye": FORMS[form][0]}), "pixels", size=84)
    with pytest.raises(Unseen, match=sentence):
        inside.frame({"eye": given})
    nothing: Any = {}
    for wrong in (nothing, given, [given]):
        with pytest.raises(Unseen, match="needed is a dictionary"):
            inside.frame(wrong)


def test_numbers_beside_the_image_are_chosen_by_key() -> None:
    numbers = {key: spaces.Box(-1.0, 1.0, (n,)) for key, n in (("arm", 3), ("leg", 2))}
    parts = {"eye": FORMS["colour"][0], **numbers, "table": spaces.Box(-9.0, 9.0, (2, 3))}
    parts |= {"word": spaces.Text(9), "choice": spaces.Discrete(3)}
    sight = look(spaces.Dict(parts), "pixels", size=12)
    assert sight.numbers == {"arm": (3,), "leg": (2,), "table": (2, 3)}
    assert sight.vector_dim == 11
    assert str(sight).endswith("beside it arm, leg, table: 11 numbers; not seen: choice, word")
    one = look(spaces.Dict(parts), "pixels", size=12, vector="leg,arm")
    assert list(one.numbers) == ["leg", "arm"]
    seen = {"eye": PICTURE, "arm": np.zeros(3), "leg": np.array([1.0, np.nan])}
    with pytest.raises(Unseen, match=r"\['leg'\] that is not finite"):
        one.frame(seen)
    with pytest.raises(Unseen, match=r"no numbers in 'eye' for env.vector=eye; .* in 'arm', 'leg'"):
        look(spaces.Dict(parts), "pixels", size=12, vector="eye")
    with pytest.raises(Unseen, match=r"env\.vector=arm"):
        look(FORMS["colour"][0], "pixels", size=12, vector="arm")
    with pytest.raises(Unseen, match="without the numbers"):
        look(spaces.Dict(parts), "pixels", size=12, image="render", vector="arm", render=screen)
    rendered = look(spaces.Dict(parts), "pixels", size=12, image="render", render=screen)
    assert not rendered.numbers


def test_states_are_the_numbers_of_an_observation() -> None:
    parts = {"arm": spaces.Box(-1.0, 1.0, (2, 2)), "eye": FORMS["colour"][0]}
    parts["leg"] = spaces.Box(-9.0, 9.0, (1,))
    sight = look(spaces.Dict(parts), "state", size=84)
    seen = {"leg": np.array([5.0]), "arm": np.arange(4.0).reshape(2, 2), "eye": PICTURE}
    np.testing.assert_array_equal(sight.frame(seen), np.array([0, 1, 2, 3, 5], np.float32))
    assert str(sight) == "sees: the state, 5 numbers; not seen: eye"
    with pytest.raises(Unseen, match="not finite"):
        sight.frame({**seen, "leg": np.array([np.inf])})
    with pytest.raises(Unseen, match="as a state a Box is needed"):
        look(spaces.Discrete(3), "state", size=84)


def test_frames_need_no_simulator_and_no_torch() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('gymnasium', 'torch', 'mujoco')))\n"
        "import numpy as np\n"
        "from kstep.envs.sight import Picture, Sight\n"
        "sight = Sight('observation', (Picture('', (20, 30, 3), (0, 1, 2)),), 10, 15)\n"
        "sys.stdout.write(str(sight.frame(np.zeros((20, 30, 3), np.uint8)).shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(10, 15, 3)", "")


# Whole environments.


SEEN = {
    "chw": ((48, 48, 3), "sees: observation (channels first), 48x48"),
    "float": ((48, 48, 3), "sees: observation (floats from 0 to 1), 48x48"),
    "hw": ((48, 48, 1), "sees: observation, 48x48, grey"),
    "stack": ((48, 48, 4), "sees: observation (channels first), 48x48, 4 channels"),
    "wide": ((48, 72, 3), "sees: observation, 48x72"),
    "dict": ((48, 48, 3), 'sees: observation["rgb"], 48x48'),
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user would who keeps environments in a folder."""
    monkeypatch.syspath_prepend(str(IMPORTABLE))
    monkeypatch.setenv("PYTHONPATH", str(IMPORTABLE))
    import kstep_seen  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.parametrize("form", SEEN)
def test_the_observation_is_seen_and_not_the_render(form: str) -> None:
    env = make(EnvConfig(f"gym:Seen/{form}-v0", size=48), 0)
    shape, line = SEEN[form]
    assert spec_of(env).frame_shape == shape
    assert str(env.sight) == line
    first, _ = env.reset(seed=1)
    assert set(np.unique(first)) == {0, 200}
    assert (first == 200).sum() == 8 * 4 * shape[2]
    second, *_ = env.step(np.zeros(1))
    assert (second == 200).sum() == 8 * 5 * shape[2]
    assert (env.film_frame(30, 30) == 77).all()
    env.close()


def test_an_image_of_unknown_range_is_refused_by_name() -> None:
    with pytest.raises(KstepError, match=r"gym:Seen/odd-v0 has an observation that cannot be read"):
        make(EnvConfig("gym:Seen/odd-v0"), 0)
    env = make(EnvConfig("gym:Seen/odd-v0", image="render"), 0)
    assert (env.reset(seed=0)[0] == 77).all()


def test_choices_that_have_no_effect_are_refused() -> None:
    for method, task, setting in (
        ("ksl", "toy_reach", "env.image=render"),
        ("sac_state", "gym:Pendulum-v1", "env.image=render"),
        ("ksl", "toy_reach", "env.vector=none"),
        ("sac_state", "toy_reach", "env.resize=square"),
        ("ksl", "toy_reach", "env.resize=wide"),
    ):
        with pytest.raises(KstepError, match=setting.partition("=")[0].replace(".", r"\.")):
            resolve(method, task, overrides=[setting])
    assert resolve("ksl", "toy_reach", overrides=["env.resize=60x90"]).env.resize == "60x90"


TINY = ["--preset", "debug", "--env-steps", "50", "--threads", "1", "--overlap", "here"]


@pytest.mark.parametrize("method", ["ksl", "rad", "sac_ae"])
def test_runs_on_images_that_are_not_square(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shifts, crops and the decoder; the run says what is seen, and so does its evaluation."""
    folder = str(tmp_path / "run")
    main(["train", method, "gym:Seen/wide-v0", *TINY, "--folder", folder])
    assert "sees: observation, 48x72" in " ".join(capsys.readouterr().out.split())
    main(["eval", folder, "--episodes", "1"])
    assert "sees: observation, 48x72" in " ".join(capsys.readouterr().out.split())


def test_a_run_on_stacked_frames(tmp_path: Path) -> None:
    words = ["--save-encoders-every", "40", "--folder", str(tmp_path / "run")]
    main(["train", "ksl", "gym:Seen/stack-v0", *TINY, *words])
    assert list((tmp_path / "run" / "encoders").iterdir())
