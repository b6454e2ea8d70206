"""Numbers of tiny runs of every method and variant, as `expected_runs.json` holds them.

    python -m tests.contract.expected_runs            # writes the file anew, in about a minute
    python -m tests.contract.expected_runs FILE       # every number of these runs, for a comparison

Processes that run them use no instruction set above SSE, so that most x86 processors are one
numeric platform. Even so MKL computes roots from the processor's own approximation of 1 / sqrt(x)
(RSQRTPS), which Intel and AMD round apart. Runs that the difference reaches have other bits: the
file says of which kind the processor was, and what each run computed on fixed images.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

FILE = Path(__file__).with_name("expected_runs.json")
CAPPED = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    # By the names of numpy 2.4 and of older versions, which leave out those that they do not know.
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX"
    " AVX512_CNL AVX512_ICL AVX512_SPR",
}
ACCURACIES = ("knn_acc", "linear_acc")
SHOWN = ("objective", "sep", "effective_rank", "relative_movement", *ACCURACIES)
TINY = {
    "data.train_subset": 48,
    "data.test_subset": 20,
    "data.num_clients": 2,
    "data.partition": "dirichlet",  # clients of different sizes: weights count
    "data.alpha": 1.0,
}
OBJECTIVES = ("global-sep", "lidar", "rankme", "alpha-req", "self-clustering")
ADDONS_ON = {"uv": "simclr", "fedu2": "simclr"}  # of an add-on's variants; others on spectral
REQUIRES: Mapping[tuple[str, Any], Mapping[str, Any]] = {
    ("byol", "fedu"): {"target": "personal"},
    ("byol", "fedema"): {"target": "personal"},
}
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        ("simclr", {"server.optimizer": name, "server.lr": 0.1})
        for name in ("momentum", "adam", "adam-reddi", "yogi", "adagrad")
    ),
    ("byol", {"server.weighting": "examples", "model.norm": "batch"}),
    ("byol", {"model.norm": "batch-local"}),
    ("orchestra", {"data.num_clients": 4, "federation.participation": 0.5}),
    ("simclr", {"client.optimizer": "adam", "client.lr": 0.001}),
    ("simclr", {"privacy.clip": 0.5}),
    ("simclr", {"model.backbone": "cct-4-3x2"}),
    ("mim", {"model.backbone": "vit-5", "model.width": 12}),
    ("supervised", {"data.label_fraction": 0.5}),
    ("simclr", {"model.trainable": "last:1"}),
    ("simclr", {"evaluation.objectives": [*OBJECTIVES], "evaluation.every": 1}),
    (
        "spectral",
        {
            "evaluation.protocols": ["linear-paper", "few-shot", "mlp", "local", "angles"],
            "evaluation.mlp_epochs": 3,
        },
    ),
)
"""Settings beside the method that decide what is trained or measured."""

Values = Mapping[str, float]
Run = Mapping[str, Any]
"""`numbers` of a run, `Values`, and its `arithmetic`, the hashes of a row's platform as a text."""


def variants(spec: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every other choice of each field of a method or add-on that has a few choices."""
    from fedbench.bench.method import registry

    entry = registry.entries()[spec]
    base = f"{ADDONS_ON.get(spec, 'spectral')}+{spec}" if entry.is_addon else spec
    for field, info in entry.cls.model_fields.items():
        kind, name = info.annotation, f"method.{spec}." if entry.is_addon else "method."
        choices = get_args(kind) if get_origin(kind) is Literal else (True, False)
        if get_origin(kind) is Literal or kind is bool:
            for value in choices:
                if value != info.default:
                    more = {name + k: v for k, v in REQUIRES.get((spec, value), {}).items()}
                    yield base, {name + field: value, **more}


def runs() -> dict[str, tuple[str, dict[str, Any]]]:
    """Spec and settings of each run by its key, such as `simclr method.variant=info-nce`."""
    from fedbench.bench.method import registry
    from tests.specs import REFUSED

    plain: list[tuple[str, dict[str, Any]]] = [
        (spec, {}) for spec in registry.specs() if spec not in REFUSED
    ]
    others = [run for name in registry.entries() for run in variants(name)]
    found = {}
    for spec, values in (*plain, *others, *OTHERS):
        text = " ".join([spec, *(f"{name}={value}" for name, value in values.items())])
        found[text] = (spec, values)
    return found


def roots() -> str:
    """Hash of the bits of roots, which tells the kinds of processor apart."""
    import torch

    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.float64):
        values = (torch.arange(1, 1001).double() / 1009).to(dtype)
        matrix = values[:256].reshape(16, 16)
        for tensor in (values.sqrt(), torch.linalg.cholesky(matrix @ matrix.T + torch.eye(16))):
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def _measure(spec: str, values: Mapping[str, Any], store: Path) -> Run:
    """Metrics of a run, and of its rounds as `1.loss`, with its arithmetic."""
    import fedbench
    from fedbench.bench.config.dotted import flatten
    from fedbench.bench.method import Labels, registry
    from fedbench.bench.testing import tiny_config
    from fedbench.bench.training.platforms import ARITHMETIC

    settings = {**TINY, **values}
    if registry.create(spec, {}).needs().labels is Labels.SOME:
        settings.setdefault("data.label_fraction", 0.5)
    if "l-dawa" in spec:
        settings["method.l-dawa.warmup_rounds"] = 0
    config = tiny_config(spec, **{k.replace(".", "__"): v for k, v in settings.items()})
    rounds: list[Mapping[str, Any]] = []
    result = fedbench.run(
        config,
        store=store,
        workers=1,
        device="cpu",
        on_round=lambda record, _: rounds.append(flatten(record.as_dict())),
    )
    curve = {
        f"{index + 1}.{name}": value
        for index, record in enumerate(rounds)
        for name, value in record.items()
        if not name.startswith(("seconds", "traffic", "round_index"))
    }
    metrics = {"status": result.status == "ok", **result.metrics, **curve}
    (platform,) = result.row.platforms
    return {
        "arithmetic": " ".join(platform[ARITHMETIC][part] for part in ("training", "scores")),
        "numbers": {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)},
    }


def parts() -> dict[str, list[str]]:
    """Return keys of the runs that `make test` makes, and of those left to `make test-extended`."""
    from tests.specs import OTHERS

    found: dict[str, list[str]] = {"test": [], "extended": []}
    for key in runs():
        found["extended" if key in OTHERS else "test"].append(key)
    return found


def measure(*, part: str = "", onednn: bool = True) -> dict[str, Run]:
    """Return every run, or those of a part; without oneDNN, convolutions are rounded otherwise."""
    from tests.gpu.fake_gpu import without_onednn

    found, every = {}, runs()
    with nullcontext() if onednn else without_onednn():
        for key in parts()[part] if part else every:
            spec, values = every[key]
            with tempfile.TemporaryDirectory() as folder:
                found[key] = _measure(spec, values, Path(folder))
    return found


def in_new_process(*arguments: str) -> dict[str, Any]:
    """Return `{platform, roots, runs}` as a process with capped instruction sets measures them."""
    command = [sys.executable, "-m", "tests.contract.expected_runs", "-", *arguments]
    env = {**os.environ, **CAPPED}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def digest(numbers: Values, names: Iterable[str]) -> str:
    """Hash of the bits of those of the names that a run has, 16 hexadecimal digits."""
    text = " ".join(f"{name}={numbers[name].hex()}" for name in names if name in numbers)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def held(run: Run, names: Iterable[str]) -> dict[str, Any]:
    """What the file holds of a run."""
    numbers = run["numbers"]
    return {"bits": digest(numbers, names), "arithmetic": run["arithmetic"], **shown(numbers)}


def shown(numbers: Values) -> dict[str, float]:
    """The numbers of a run that the file has in digits: they are read, and compared elsewhere."""
    return {
        name: v for name, v in numbers.items() if name.partition(".")[2] == "loss" or name in SHOWN
    }


def _write(measured: Mapping[str, Any]) -> None:
    names = sorted({name for run in measured["runs"].values() for name in run["numbers"]})
    lines = [
        f"{json.dumps(key)}: " + json.dumps(held(run, names))
        for key, run in measured["runs"].items()
    ]
    head = f'{{"platform": {json.dumps(measured["platform"])}, "roots": "{measured["roots"]}",\n'
    head += f'"names": {json.dumps(names)},\n'
    FILE.write_text(head + '"runs": {\n' + ",\n".join(lines) + "\n}}\n")


def _main(arguments: Sequence[str]) -> None:
    if not arguments:
        _write(in_new_process())
    elif arguments[0] != "-":
        Path(arguments[0]).write_text(json.dumps(in_new_process()["runs"], indent=0))
    else:
        from fedbench.bench.system.numerics import measure as platform

        part = "".join({"test", "extended"}.intersection(arguments))
        found = measure(part=part, onednn="--no-onednn" not in arguments)
        print(json.dumps({"platform": str(platform("cpu")), "roots": roots(), "runs": found}))


if __name__ == "__main__":
    _main(sys.argv[1:])
