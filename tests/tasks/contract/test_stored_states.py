"""Test that states in an object store are complete, those of the holder, and removed in the end."""

import json
import logging
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from hallmark.tasks.contract import Store, store_lease, stored_states
from hallmark.tasks.contract.store_lease import LeaseLostError, StoredState, lease_in_store
from hallmark.tasks.contract.stored_states import StoredStates, list_stored_areas

AREA = "climb-0123456789abcdef"


@pytest.fixture
def store(bucket, tmp_path):
    return Store(f"s3://hallmark/{tmp_path.name}", tmp_path / "work")


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(store_lease, "EXPIRY_SECONDS", 0.5)
    monkeypatch.setattr(store_lease, "CHECK_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(store_lease, "RENEWAL_SECONDS", 1000.0)
    monkeypatch.setattr(stored_states, "SEND_INTERVAL_SECONDS", 0.0)


@contextmanager
def host(store, tmp_path, name):
    """The states of a stage on a host, whose folders begin empty."""
    work_area = tmp_path / name / AREA
    work_area.mkdir(parents=True, exist_ok=True)
    with lease_in_store(store, AREA, work_area) as lease:
        states = StoredStates(
            store, lease, work_area=work_area, fingerprint="f" * 64, inputs=["pack/1"]
        )
        states.folder = work_area / "training"
        try:
            yield states
        finally:
            states.close()


def write_files(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def read_files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def make_files(step):
    """The files of a state: the log of all steps so far, and a state of this step alone."""
    logs = {f"log/{earlier}": f"row {earlier}" for earlier in range(1, step + 1)}
    return {**logs, f"state/{step}": f"weights {step}"}


def send(states, step, files=None):
    """Send a state, and wait until the store has it."""
    content = make_files(step) if files is None else files
    states.send("training", step, lambda folder: write_files(folder, content))
    wait_until_idle(states)


def wait_until_idle(states):
    is_idle = threading.Event()
    while not is_idle.wait(0.01):
        if states._pending is None and not any(states.outgoing_folder.iterdir()):
            return


def list_steps(states):
    work = states.lease.record.works.get("training")
    return [state.step for state in work.states] if work else []


def test_another_host_gets_the_newest_state(store, tmp_path):
    with host(store, tmp_path, "one") as one:
        for step in (1, 2, 3):
            send(one, step)
        assert list_steps(one) == [3, 2]
    with host(store, tmp_path, "two") as two:
        write_files(two.folder, {"state/1": "old", "log/9": "other"})
        assert two.restore(two.folder, 1) == 3
        assert read_files(two.folder) == make_files(3)
        send(two, 4)
        assert list_steps(two) == [4, 3]
        assert two.restore(two.folder, 4) is None
    contents = [store.get(key) for key in store.list_keys("work-states")]
    texts = sorted(content.decode() for content in contents if content[:1] != b"[")
    # Each file once, and none that only older states need.
    assert texts == sorted({*make_files(4).values(), *make_files(3).values()})
    assert len(contents) == len(texts) + 2


def test_nothing_is_fetched_without_states(store, tmp_path):
    with host(store, tmp_path, "one") as one:
        write_files(one.folder, {"state/1": "own"})
        assert one.restore(one.folder, 1) is None
        assert read_files(one.folder) == {"state/1": "own"}
    assert store.list_keys("") == []


def damage(store, index_key, kind):
    """Damage a state; return what the warning says."""
    entries = json.loads(store.get(index_key))
    key = next(entry["key"] for entry in entries if entry["path"].startswith("state"))
    if kind == "missing file":
        store.delete([key])
        return f"{key} is missing"
    if kind == "changed file":
        store.put(key, b"weights X")
        return f"{key} does not match its SHA-256"
    if kind == "missing list":
        store.delete([index_key])
        return f"{index_key} is missing"
    store.put(index_key, b"[]")
    return f"{index_key} does not match its SHA-256"


@pytest.mark.parametrize("kind", ["missing file", "changed file", "missing list", "changed list"])
def test_a_damaged_state_is_skipped(store, tmp_path, caplog, kind):
    with host(store, tmp_path, "one") as one:
        send(one, 1)
        send(one, 2)
        newest = one.lease.record.works["training"].states[0]
    problem = damage(store, newest.index_key, kind)
    with host(store, tmp_path, "two") as two, caplog.at_level(logging.WARNING):
        assert two.restore(two.folder, None) == 1
        assert read_files(two.folder) == make_files(1)
        assert caplog.messages == [
            f"the state of step 2 in the store cannot be used: {problem}; an earlier state will "
            "be used if one is available"
        ]
        send(two, 2)  # the same step again
        assert list_steps(two) == [2, 1]
    with host(store, tmp_path, "three") as three:
        assert three.restore(three.folder, None) == 2
        assert read_files(three.folder) == make_files(2)


def test_without_an_intact_state_the_folder_stays(store, tmp_path, caplog):
    with host(store, tmp_path, "one") as one:
        send(one, 5)
        damage(store, one.lease.record.works["training"].states[0].index_key, "missing list")
    with host(store, tmp_path, "two") as two:
        write_files(two.folder, {"state/1": "own"})
        assert two.restore(two.folder, 1) is None
        assert read_files(two.folder) == {"state/1": "own"}


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "../outside", "key": "work-states/x", "size": 1, "sha256": "0"},
        {"path": "/outside", "key": "work-states/x", "size": 1, "sha256": "0"},
        {"path": "inside", "key": "../secret", "size": 1, "sha256": "0"},
        {"path": "inside", "key": "secret", "size": -1, "sha256": "0"},
        {"path": "inside"},
        None,
    ],
)
def test_a_hostile_list_leads_nowhere(store, tmp_path, caplog, entry):
    index = json.dumps([entry]).encode()
    store.put("work-states/evil.json", index)
    state = StoredState(3, "work-states/evil.json", stored_states.sha256_hex(index))
    with host(store, tmp_path, "one") as one:
        work = store_lease.StoredWork("f" * 64, (), (state,))
        one.lease.change_works(lambda _: {"training": work})
        assert one.restore(one.folder, None) is None
        assert "work-states/evil.json is not a list of files" in caplog.text
    assert [path.name for path in (tmp_path / "one").iterdir()] == [AREA]


def test_a_list_with_files_below_files_is_damaged(store, tmp_path, caplog):
    with host(store, tmp_path, "one") as one:
        send(one, 1)
        store.put("work-states/file", b"x")
        entry = {"key": "work-states/file", "size": 1, "sha256": stored_states.sha256_hex(b"x")}
        for paths in (["a", "a/b"], ["a/b", "a"], ["a", "a"], ["x" * 5000]):
            index = json.dumps([{"path": path, **entry} for path in paths]).encode()
            store.put("work-states/index", index)
            state = StoredState(9, "work-states/index", stored_states.sha256_hex(index))
            work = one.lease.record.works["training"]
            damaged = replace(work, states=(state, *work.states[-1:]))
            one.lease.change_works(lambda _, work=damaged: {"training": work})
            assert one.restore(one.folder, None) == 1
            assert read_files(one.folder) == make_files(1)
    assert caplog.text.count("work-states/file cannot be written to a file: ") == 3
    assert caplog.text.count("work-states/index is not a list of files") == 1  # too long a path


def test_a_former_holder_neither_replaces_nor_deletes_states(store, tmp_path):
    with host(store, tmp_path, "one") as one:
        send(one, 1)
        with host(store, tmp_path, "two") as two:
            assert two.restore(two.folder, None) == 1
            send(two, 2)
            send(one, 9)  # it continues, and does not know
            assert one.lease._successor is not None
            one.remove()
            with pytest.raises(LeaseLostError):
                one.restore(one.folder, None)
            assert list_steps(two) == [2, 1]
            with host(store, tmp_path, "three") as three:
                assert three.restore(three.folder, None) == 2
                assert read_files(three.folder) == make_files(2)


def test_only_the_newest_state_is_sent_if_sending_is_slower(store, tmp_path, monkeypatch):
    may_send = threading.Event()
    real_put = Store.put

    def put(self, key, data):
        assert may_send.wait(30)
        real_put(self, key, data)

    monkeypatch.setattr(Store, "put", put)
    with host(store, tmp_path, "one") as one:
        for step in range(1, 6):
            one.send("training", step, lambda folder, s=step: write_files(folder, make_files(s)))
        may_send.set()
        wait_until_idle(one)
        assert list_steps(one)[0] == 5 and not {2, 3, 4} & {*list_steps(one)}
    assert list_steps(one) in ([5], [5, 1])


def test_a_store_that_fails_does_not_stop_the_work(store, tmp_path, monkeypatch, caplog):
    real_put = Store.put

    def put(self, key, data):
        raise OSError(5, "Input/output error")

    with host(store, tmp_path, "one") as one:
        monkeypatch.setattr(Store, "put", put)
        send(one, 1)
        assert "the state of step 1 could not be sent to the store: [Errno 5]" in caplog.text
        monkeypatch.setattr(Store, "put", real_put)
        send(one, 2)
        assert list_steps(one) == [2]
    with host(store, tmp_path, "two") as two:
        assert two.restore(two.folder, None) == 2


def test_states_are_removed_after_the_commit(store, tmp_path):
    with host(store, tmp_path, "one") as one:
        send(one, 1)
        send(one, 2)
        one.remove()
        one.send("training", 3, lambda folder: write_files(folder, make_files(3)))
    assert store.list_keys("") == []


def test_states_of_a_training_with_another_fingerprint_remain(store, tmp_path):
    with host(store, tmp_path, "one") as one:
        send(one, 1)
    with host(store, tmp_path, "two") as two:
        two.fingerprint = "e" * 64
        assert two.restore(two.folder.with_name("other"), None) is None
        two.send("other", 7, lambda folder: write_files(folder, {"state": "other"}))
        wait_until_idle(two)
        two.remove()
    (area,) = list_stored_areas(store)
    assert area.name == AREA and [*area.record.works] == ["training"]
    assert area.record.works["training"].inputs == ("pack/1",)
    assert area.find_unlisted_keys(store) == set()
    with host(store, tmp_path, "three") as three:
        assert three.restore(three.folder, None) == 1


def test_states_that_another_fingerprint_continued_are_removed(store, tmp_path):
    """It differs in a setting that changes no step, such as the device of another host."""
    with host(store, tmp_path, "one") as one:
        send(one, 1)
    with host(store, tmp_path, "two") as two:
        two.fingerprint = "e" * 64
        assert two.restore(two.folder, None) == 1
        two.remove()
    assert store.list_keys("") == []


def test_a_local_store_has_no_stored_areas(tmp_path):
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "x.json").write_text("{}")
    assert list_stored_areas(Store(tmp_path)) == []
