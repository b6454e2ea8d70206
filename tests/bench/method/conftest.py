import pytest

from fedbench.bench.method import registry


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the registrations of a test after it."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry.entries()))
