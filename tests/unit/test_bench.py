"""The benchmark counts, splits and divides rightly. How long anything takes is not tested."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from rich.console import Console

from kstep import native
from kstep.agent import Agent
from kstep.bench import measure, parts, results, steps
from kstep.bench.options import SECTIONS, Options
from kstep.bench.parts import Meter, convolution_flops, measured
from kstep.bench.results import Measurements, promise
from kstep.bench.sizes import QUICK
from kstep.bench.steps import KSL, RELEASED, SAC_PIXEL, Steps, Workload, step_name
from kstep.bench.timing import Candidate, Times, interleave
from kstep.cli import main
from kstep.data.replay import Replay
from kstep.native import Backend
from kstep.nets.backends import NativeEncoder
from kstep.nets.encoder import PixelEncoder
from tests.make import agent_and_replay


class Clock:
    """A clock that only work advances."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time

    def takes(self, *seconds: float) -> Callable[[], None]:
        """Work that takes so long the first time, the second time, ..."""
        left = list(seconds)

        def work() -> None:
            self.time += left.pop(0)

        return work


def test_everything_takes_its_turn_and_medians_leave_the_first_round_out() -> None:
    clock, turns = Clock(), []
    candidates = [
        Candidate("a", clock.takes(100, 4, 6, 50), count=2),
        Candidate("b", clock.takes(100, 1, 2, 1)),
    ]
    times = interleave(
        candidates, 3, before=lambda number, c: turns.append((number, c.name)), now=clock
    )
    assert turns == [(number, name) for number in range(4) for name in "ab"]
    assert times.rounds == {"a": [2000, 3000, 25000], "b": [1000, 2000, 1000]}
    assert times.ms("a") == 3000
    assert times.ratio("a", "b") == {"ratio": 3.0, "rounds": [1.5, 25.0]}


def test_threads_are_set_for_each_and_restored() -> None:
    before, seen = torch.get_num_threads(), []

    def work() -> dict[str, float]:
        seen.append(torch.get_num_threads())
        return {"threads": 10.0 * torch.get_num_threads()}

    times = interleave([Candidate("one", work, threads=1), Candidate("two", work, 2, threads=2)], 1)
    assert seen == [2, 1, 2, 1]
    assert times.parts("two") == {"threads": 10.0}
    assert torch.get_num_threads() == before


def test_arithmetic_of_the_papers_encoder() -> None:
    # 9 -> 32 channels on 41x41, then 32 -> 32 on 39x39, 37x37 and 35x35.
    layers = [81 * 32 * 41**2, 288 * 32 * 39**2, 288 * 32 * 37**2, 288 * 32 * 35**2]
    maps = [(side, side, 32) for side in (41, 39, 37, 35)]
    shape = native.Shape(3, 84, 84, 3, (2, 1, 1, 1))
    assert shape.maps() == maps
    forward, backward = convolution_flops(shape)
    assert forward == 2 * sum(layers) == 84_561_984
    assert backward == 4 * sum(layers) - 2 * layers[0] == 160_409_664


def backends() -> list[Backend]:
    try:
        native.kernels()
    except native.Unavailable:
        return ["torch"]
    return ["torch", "native"]


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(
    ("workload", "forward", "backward"),
    [
        # Batches of 8. Critic: s' online, s' slow, s; KSL: 3 futures slow, s; every second: actor.
        (KSL, 8 * (3 + 4) + 8 / 2, 8 * 2),
        # Two views in the critic.
        (RELEASED, 8 * (6 + 4) + 8 / 2, 8 * 3),
    ],
)
def test_what_a_step_convolves(
    workload: Workload, forward: float, backward: float, backend: Backend
) -> None:
    candidate = Steps(QUICK).split(workload, backend, 1)
    assert candidate.count == 2
    found = candidate.work()
    assert isinstance(found, dict)
    assert found[parts.FORWARD] / candidate.count == forward
    assert found[parts.BACKWARD] / candidate.count == backward
    for part in parts.PARTS:
        assert found[part] > 0, part
    for way in ("forward", "backward"):
        assert 0 < found[f"convolve {way}"] <= found[f"encode {way}"]
    assert found["encode"] == pytest.approx(found["encode forward"] + found["encode backward"])


def test_time_belongs_to_the_innermost_part() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.time += 1
    meter.enter("encode backward")
    with meter.during():
        clock.time += 2
        meter.enter("convolve backward")
        clock.time += 4
        meter.enter("sample")
        clock.time += 8
    clock.time += 16
    meter.leave()
    clock.time += 32
    found = meter.results()
    assert found["heads"] == 33_000
    assert found["sample"] == 8_000
    assert found["convolve backward"] == 4_000
    assert found["encode backward"] == found["encode"] == 22_000


def test_measuring_changes_nothing() -> None:
    (watched, replay), (free, same) = agent_and_replay("ksl"), agent_and_replay("ksl")
    before = (Replay.sequences, torch.autograd.grad, torch.nn.Conv2d.forward)
    for _ in range(3):
        with measured():
            watched.update(replay)
        free.update(same)
    assert (Replay.sequences, torch.autograd.grad, torch.nn.Conv2d.forward) == before
    expected = free.state()
    for name, tensor in watched.state().items():
        assert torch.equal(tensor, expected[name]), name


def test_each_backend_has_an_agent_of_its_own() -> None:
    made = Steps(QUICK)
    expected = {"native": NativeEncoder, "torch": PixelEncoder}
    for backend in backends():
        agent = made.agent(KSL, backend)
        assert type(agent.encoder) is type(agent.slow_encoder) is expected[backend]
        assert agent is made.agent(KSL, backend)


def test_a_line_is_a_line() -> None:
    assert results.over_a_line({1: 5.0, 3: 9.0, 5: 13.0, 10: 23.0}) == pytest.approx(1.0)
    assert results.over_a_line({32: 3.0, 64: 5.0, 128: 9.0, 256: 17.0}) == pytest.approx(1.0)
    squares = {k: float(k * k) for k in (1, 3, 5, 10)}
    assert results.over_a_line(squares) == pytest.approx(100 / (35 / 3 + 6 * 7))


def test_promises_are_held_to_their_own_side() -> None:
    assert promise("fast", 2.0, 1.8, True)["holds"]
    assert not promise("fast", 1.7, 1.8, True)["holds"]
    assert promise("small", 2.0, 2.3, False)["holds"]
    assert not promise("small", math.nan, 2.3, False)["holds"]


def taken(**rounds: list[float]) -> Times:
    return Times(dict(rounds), {name: {} for name in rounds})


def all_of(times: Times) -> Measurements:
    return Measurements(times, QUICK, (1, 2), ("torch", "native"))


def test_ratios_are_those_of_medians() -> None:
    names = {
        step_name(SAC_PIXEL, "torch", 2): [10.0, 20.0, 90.0],
        step_name(KSL, "torch", 2): [30.0, 50.0, 400.0],
        step_name(KSL, "native", 2): [30.0, 40.0, 60.0],
        steps.plain_name(KSL): [100.0, 80.0, 70.0],
    }
    made = results.results(all_of(taken(**names)))
    assert [(row["method"], row["normalized"], row["paper"]) for row in made["methods"]] == [
        ("sac_pixel", 1.0, 1.0),
        ("ksl", 2.5, 3.9),
    ]
    assert [(row["backend"], row["ratio"]) for row in made["plain"]] == [
        ("torch", 80 / 50),
        ("native", 80 / 40),
    ]
    held = {promise["text"]: promise["holds"] for promise in made["promises"]}
    assert held == {
        "ksl: over SAC from pixels (torch)": False,
        "ksl: times as fast as the plain reference (torch)": True,
        "ksl: times as fast as the plain reference (native)": False,
    }
    assert "encoder" not in made
    assert "memory" not in made


def test_what_threads_bring_beside_a_busy_process() -> None:
    steps_of = {"step ksl/native/1": [800.0], "step ksl/native/1, busy": [900.0]}
    steps_of |= {"step ksl/native/2": [400.0], "step ksl/native/2, busy": [1000.0]}
    made = results.results(all_of(taken(**steps_of)))
    one, two = made["busy"]
    assert (one["threads"], one["alone"], one["busy"]) == (1, 800.0, 900.0)
    assert two["gain"]["alone"]["ratio"] == pytest.approx(2.0)
    assert two["gain"]["busy"]["ratio"] == pytest.approx(0.9)
    (broken,) = (row for row in made["promises"] if "busy" in row["text"])
    assert not broken["holds"]


def test_a_busy_process_is_there_and_ends() -> None:
    process = psutil.Process()
    before = {child.pid for child in process.children()}
    candidate = Candidate(
        "busy",
        lambda: {"others": 1.0 * len({c.pid for c in process.children()} - before)},
        beside=True,
    )
    times = interleave([candidate], 1)
    assert times.parts("busy") == {"others": 1.0}
    assert {child.pid for child in process.children()} == before


def test_rates_of_convolution() -> None:
    forward, backward = convolution_flops(QUICK.encoder_shape())
    times = taken(**{"split ksl/torch": [1.0], "matrix product/2": [20.0]})
    product = 2 * QUICK.matrix**3 / 20e-3 / 1e9
    inside = {part: [1.0] for part in parts.PARTS}
    inside |= {"encode": [6.0], "convolve forward": [1.0], "convolve backward": [3.0]}
    inside |= {"encode forward": [2.0], "encode backward": [4.0]}
    inside |= {parts.FORWARD: [60.0], parts.BACKWARD: [16.0]}
    times.inside["split ksl/torch"] = inside
    made = results.results(all_of(times))
    work = 60 * forward + 16 * backward
    row = made["convolutions"]["backends"]["torch"]
    assert made["convolutions"]["product_gflops"] == pytest.approx(product)
    assert row["gflops"]["all"] == pytest.approx(work / 4e-3 / 1e9)
    assert row["gflops"]["backward"] == pytest.approx(16 * backward / 3e-3 / 1e9)
    assert row["gflops_with_conversion_and_relu"]["all"] == pytest.approx(work / 6e-3 / 1e9)
    assert row["of_product"] == pytest.approx(work / 4e-3 / 1e9 / product)
    assert made["split"]["torch"]["share"]["encode"] == pytest.approx(6 / 11)


def test_the_table_has_every_controlled_method_and_every_reading() -> None:
    names = [workload.name for workload in steps.METHODS]
    assert names == [
        *("sac_state", "sac_pixel", "rad", "drq", "curl", "sac_ae", "pi_sac", "proto_rl"),
        *("ksl", "ksl-results", "ksl-released"),
    ]
    for workload in steps.METHODS:
        QUICK.experiment(workload.method, workload.overrides).validate()


def bench(*options: str) -> None:
    main(["bench", "--quick", "--threads", "1", "--rounds", "1", *options])


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("bench") / "new" / "bench.json"
    bench("--out", str(out))
    return out, json.loads(out.read_text())


def test_a_quick_run_measures_every_section(quick: tuple[Path, dict[str, Any]]) -> None:
    out, document = quick
    assert out.with_suffix(".png").read_bytes()[1:4] == b"PNG"
    assert document["size"] == "debug"
    assert document["rounds"] == 1
    assert document["sections"] == list(SECTIONS)
    for section in (*SECTIONS, "convolutions", "promises", "system"):
        assert document[section], section
    for name, row in document["times"].items():
        assert len(row["rounds"]) == 1, name
        assert 0 < row["ms"] < 60_000, name


def test_a_quick_runs_numbers_agree(quick: tuple[Path, dict[str, Any]]) -> None:
    _, document = quick
    times = {name: row["ms"] for name, row in document["times"].items()}
    for row in document["methods"]:
        name = f"{row['method']}/{row['backend']}/1"
        base = times[f"step sac_pixel/{row['backend']}/1"]
        assert row["normalized"] == pytest.approx(times[f"step {name}"] / base)
    methods = [workload.name for workload in steps.METHODS]
    assert len(document["methods"]) == len(methods) * len(document["backends"])
    assert {row["method"] for row in document["plain"]} == {"ksl", "ksl-released"}
    for backend in document["backends"]:
        split = document["split"][backend]
        assert sum(split["share"].values()) == pytest.approx(1)
        images = document["convolutions"]["backends"][backend]["images"]
        assert images == {"forward": 60, "backward": 16}
    assert set(document["cost"]["k"]["ms"]) == {"1", "2", "3"}
    assert set(document["cost"]["batch"]["ms"]) == {"4", "8", "16"}
    memory = document["memory"]
    # A ring of 1,000 decisions holds a few frames more; 48x48x3 bytes each.
    assert memory["replay_bytes_computed"] > 1_000 * 48 * 48 * 3
    assert memory["process_bytes"] > memory["replay_bytes"] > 0
    for row in document["renderers"]:
        assert row["frames_per_second"] > 0


def test_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.png").write_text("mine")
    (tmp_path / "named.json").write_text("mine")
    for wrong in ("named.json", "bench.json", "bench.txt"):
        with pytest.raises(SystemExit) as stopped:
            bench("--only", "renderers", "--out", wrong)
        assert stopped.value.code == 2
    for options in (["--rounds", "0"], ["--threads", "0"]):
        with pytest.raises(SystemExit) as stopped:
            main(["bench", "--quick", *options])
        assert stopped.value.code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.png", "named.json"]
    bench("--only", "encoder", "--backend", "torch")
    (made,) = tmp_path.glob("bench-*.json")
    document = json.loads(made.read_text())
    assert document["backends"] == ["torch"]
    assert "methods" not in document
    assert (tmp_path / "bench.png").read_text() == "mine"
    assert (tmp_path / "named.json").read_text() == "mine"


def test_without_a_checkout_the_plain_reference_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "plain_module", lambda: None)
    out = tmp_path / "bench.json"
    bench("--only", "plain", "--out", str(out))
    assert "plain reference: left out" in capsys.readouterr().out
    document = json.loads(out.read_text())
    assert "plain" not in document
    assert len(document["notices"]) == 1


def test_without_the_kernels_pytorch_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object) -> None:
        raise native.Unavailable("not built")

    monkeypatch.setattr(native, "kernels", unavailable)
    run = measure._Run(Options(quick=True), Console(quiet=True))
    assert run.backends == ("torch",)
    assert run.notices == ["native encoder: left out (not built)"]
    with pytest.raises(native.Unavailable):
        measure._Run(Options(quick=True, backend="native"), Console(quiet=True))


def test_period_is_until_every_part_was_due() -> None:
    agent: Agent
    agent, _ = agent_and_replay("ksl", "method.core.actor_every=3")
    assert steps.period(agent) == 6
