"""Names, contents and memory: the registry's promises, without an engine."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from adapter_parts import info, resident, start, until

from infeng_core.adapters.loader import MOST, MOST_STUCK
from infeng_core.adapters.names import base_names
from infeng_core.errors import AdapterError, KernelError, RequestError, ResourceError, UsageError


def add(registry, *names):
    for name in names:
        registry.add(name, f"org/{name}")


def use(registry, *names):
    """Let one request after another run and end."""
    for name in names:
        start(registry, name).close()


def test_nothing_is_read_before_the_first_request(make, store):
    registry = make()
    add(registry, "a")
    assert (store.reads, info(registry, "a").state, info(registry, "a").id) == ([], "registered", None)
    reference = start(registry, "a")
    assert store.reads == ["org/a"]
    found = info(registry, "a")
    assert (found.state, found.references, found.loads, found.rank, found.error) == ("resident", 1, 1, 8, None)
    assert found.bytes == reference.rows[0][0].nbytes > 0
    assert found.load_seconds > 0
    reference.close()
    assert info(registry, "a").references == 0
    assert start(registry, "a").rows[0][1] == 1.0
    assert store.reads == ["org/a"], "it stayed in memory"


def test_the_least_recently_used_adapter_is_evicted_first(make):
    registry = make(most=3)
    add(registry, *"abcde")
    use(registry, "a", "b", "c", "a", "d")
    assert resident(registry) == ["a", "c", "d"]
    use(registry, "c", "e")
    assert resident(registry) == ["c", "d", "e"]
    assert registry.evictions == 2


def test_an_adapter_in_use_is_not_evicted(make, store):
    registry = make(most=2)
    add(registry, *"abcd")
    held = start(registry, "a")
    use(registry, "b", "c", "d", "b")
    assert held.rows[0][0].id == info(registry, "a").id
    assert resident(registry) == ["a", "b"]
    assert store.most_placed <= 2


def test_a_pinned_adapter_is_loaded_at_once_and_stays(make, store):
    registry = make(most=2)
    registry.add("a", "org/a", pin=True)
    assert (resident(registry), info(registry, "a").pinned) == (["a"], True)
    add(registry, *"bcd")
    use(registry, "b", "c", "d")
    assert resident(registry) == ["a", "d"]
    registry.pin("a", False)
    use(registry, "b", "c")
    assert resident(registry) == ["b", "c"]
    registry.pin("c")
    use(registry, "a", "b")
    assert resident(registry) == ["b", "c"]
    assert store.placed == 2


def test_pinning_without_room_is_an_error_without_side_effects(make):
    registry = make(most=1)
    add(registry, "a")
    held = start(registry, "a")
    with pytest.raises(ResourceError, match=r"adapter b .*in use or pinned.*adapters\.max_resident"):
        registry.add("b", "org/b", pin=True)
    assert [one.name for one in registry.infos()] == ["a"]
    held.close()
    registry.add("b", "org/b", pin=True)
    assert resident(registry) == ["b"]


def test_a_waiting_request_gets_memory_when_another_ends(make):
    registry = make(most=1)
    add(registry, "a", "b")
    running, waiting = start(registry, "a"), registry.refer("b")
    registry.prefetch([waiting])
    assert not waiting.acquire()
    assert info(registry, "b").state == "registered"
    mark = registry.changes
    running.close()
    assert registry.wait(mark)
    registry.prefetch([waiting])
    until(waiting.acquire)
    assert resident(registry) == ["b"]


def test_adapters_of_the_first_waiting_requests_are_not_evicted_for_later_ones(make, store):
    registry = make(most=2)
    add(registry, *"abc")
    use(registry, "a", "b")
    references = [registry.refer(name) for name in "acb"]
    registry.prefetch(references)
    until(lambda: info(registry, "c").state == "resident")
    assert resident(registry) == ["a", "c"], "a was used least recently, and no request needs b sooner"
    assert [reference.acquire() for reference in references] == [True, True, False]


def test_adapters_stay_within_the_budget_of_bytes(make, store):
    size = 8 * 16 * 4 + 16 * 4 + 16 * 4
    registry = make(most=100, budget=2 * size)
    add(registry, *"abcd")
    use(registry, "a", "b", "c", "d", "a")
    assert store.most_placed == 2
    assert resident(registry) == ["a", "d"]
    store.rank = 256
    add(registry, "large")
    with pytest.raises(ResourceError, match=r"adapters large: .* bytes do not fit: adapters\.memory is"):
        start(registry, "large")
    assert resident(registry) == ["a", "d"], "no adapter was evicted in vain"


def test_a_load_without_memory_for_its_bytes_waits(make, store):
    size = 8 * 16 * 4 + 16 * 4 + 16 * 4
    registry = make(most=100, budget=size)
    add(registry, "a", "b")
    running, waiting = start(registry, "a"), registry.refer("b")
    registry.prefetch([waiting])  # its size is unknown, so it is read
    until(lambda: info(registry, "b").bytes == size and info(registry, "b").state == "registered")
    registry.prefetch([waiting])
    assert store.reads == ["org/a", "org/b"], "now the size is known"
    running.close()
    registry.prefetch([waiting])
    until(waiting.acquire)
    assert store.most_placed == 1


def test_equal_contents_share_memory_whatever_their_names(make, store):
    store.contents = {"org/a": b"same", "org/b": b"same"}
    registry = make()
    add(registry, "a", "b")
    first, second = start(registry, "a"), start(registry, "b")
    assert first.rows == second.rows
    assert store.placed == 1
    assert info(registry, "a").id == info(registry, "b").id
    assert info(registry, "a").references == 2
    registry.remove("a")
    first.close()
    assert resident(registry) == ["b"]
    assert store.placed == 1


def test_another_scale_gives_other_contents(make, store):
    registry = make()
    registry.add("a", "org/a")
    registry.add("half", "org/a", scale=0.5)
    use(registry, "a", "half")
    assert info(registry, "a").id != info(registry, "half").id
    assert store.placed == 2


def test_an_evicted_name_finds_its_contents_under_another_name(make, store):
    store.contents = {"org/a": b"same", "org/b": b"same"}
    registry = make(most=1)
    add(registry, "a", "b", "c")
    use(registry, "a", "b", "c", "a")
    reads = len(store.reads)
    use(registry, "b")
    assert len(store.reads) == reads


# ------------------------------------------------------------------------------------------------------ preemption ---


def acquired_again(registry, reference):
    """Wait until a request that gave its adapters back has them again; raises the error that it gets."""
    while not reference.acquire():
        if reference.error is not None:
            raise reference.error
        mark = registry.changes
        registry.prefetch([reference])
        registry.wait(mark)
    return reference


def test_a_preempted_request_releases_its_adapter_and_gets_it_again(make, store):
    registry = make(most=1)
    add(registry, "a", "b")
    reference = start(registry, "a")
    first = reference.rows[0][0].id
    reference.release()
    reference.release()
    assert (reference.rows, info(registry, "a").references, info(registry, "a").waiting) == ((), 0, 1)
    use(registry, "b")
    assert resident(registry) == ["b"]
    assert acquired_again(registry, reference).rows[0][0].id == first
    assert (resident(registry), info(registry, "a").references, info(registry, "a").waiting) == (["a"], 1, 0)
    reference.release()
    assert acquired_again(registry, reference).rows, "no other request needed the room"
    assert store.reads.count("org/a") == 2
    reference.close()
    assert info(registry, "a").references == info(registry, "a").waiting == 0
    use(registry, "b")


def test_a_preempted_request_continues_with_its_old_contents(make, store):
    store.contents["org/a"] = b"old"
    registry = make(most=2)
    add(registry, "a", "b")
    reference = start(registry, "a")
    old = reference.rows[0][0].id
    reference.release()
    store.contents["org/a"] = b"new"
    registry.reload("a")
    use(registry, "b")  # there is room for one beside the old contents, which could not be read again
    fresh = start(registry, "a")
    assert acquired_again(registry, reference).rows[0][0].id == old != fresh.rows[0][0].id
    registry.remove("a")
    reference.release()
    assert acquired_again(registry, reference).rows[0][0].id == old
    reference.close()
    fresh.close()
    del reference, fresh
    assert store.placed == 0, "b left for the new contents"


def test_a_reload_may_name_other_files_which_are_read_from_then_on(make, store):
    registry = make(most=4)
    add(registry, "a", "b")
    running = start(registry, "a")
    registry.reload("a", "org/other")
    assert info(registry, "a").source == "org/other" and store.reads[-1] == "org/other"
    old, fresh = running.rows[0][0].id, start(registry, "a")
    assert fresh.rows[0][0].id != old, "the running request keeps what it has"
    registry.reload("a")
    assert store.reads[-1] == "org/other"
    registry.reload("b", "org/other")
    assert info(registry, "b").id == info(registry, "a").id, "also of a name that was not in memory"
    store.contents["org/broken"] = AdapterError("org/broken", "it is broken", "mend it")
    with pytest.raises(AdapterError, match="it is broken"):
        registry.reload("a", "org/broken")
    with pytest.raises(AdapterError, match="/nowhere is not there"):
        registry.reload("a", "/nowhere")
    assert info(registry, "a").source == "org/other" and info(registry, "a").id == fresh.rows[0][0].id
    running.close()
    fresh.close()


def test_a_preempted_request_whose_contents_are_gone_for_good_gets_an_error(make, store):
    store.contents["org/a"] = b"old"
    registry = make(most=1)
    add(registry, "a", "b")
    reference, other = start(registry, "a"), None
    reference.release()
    use(registry, "b")
    store.contents["org/a"] = b"new"
    with pytest.raises(AdapterError, match="files have changed since they were first read"):
        acquired_again(registry, reference)
    reference.close()
    registry.reload("a")
    store.contents["org/a"] = b"newer"
    reference = start(registry, "a")
    reference.release()
    use(registry, "b")
    store.contents["org/a"] = b"newest"
    registry.reload("a")
    other = start(registry, "a")
    other.close()
    with pytest.raises(AdapterError, match="reloaded while the request was preempted, and its old contents have left"):
        acquired_again(registry, reference)
    reference.close()
    use(registry, "a", "b")
    assert all(one.references == one.waiting == 0 for one in registry.infos())


def test_a_preempted_request_that_ends_lets_its_contents_go(make, store):
    registry = make(most=2)
    add(registry, "a")
    reference = start(registry, "a")
    reference.release()
    registry.remove("a")
    assert store.placed == 1
    reference.close()
    reference.close()
    assert not reference.acquire()
    assert store.placed == 0


# --------------------------------------------------------------------------------------------- slow and stuck loads ---


def test_a_caller_waiting_for_a_load_gets_the_timeout_error(make, store):
    registry = make(load_timeout=0.1)
    store.gate.clear()
    with pytest.raises(AdapterError, match=r"adapter a: it was not read within 0\.1 s"):
        registry.add("a", "org/a", pin=True)
    assert registry.infos() == []
    store.gate.set()
    registry.add("a", "org/a", pin=True)
    assert resident(registry) == ["a"]


def test_slow_loads_do_not_block_others_and_quick_ones_take_turns(make, store):
    registry = make(most=16)
    add(registry, *"abcdefg")
    store.gate.clear()
    store.held = {"org/a", "org/b", "org/c"}
    references = [registry.refer(name) for name in "abcdefg"]
    registry.prefetch(references)
    until(lambda: all(reference.acquire() for reference in references[3:]))
    assert not any(reference.acquire() for reference in references[:3])
    assert sum(thread.name == "infeng-adapters" for thread in threading.enumerate()) <= MOST
    store.gate.set()
    until(lambda: all(reference.acquire() for reference in references))


def test_loads_that_never_end_take_a_bounded_number_of_threads(make, store):
    registry = make(most=64, load_timeout=0.05)
    names = [f"n{i}" for i in range(MOST_STUCK + 3 * MOST)]
    add(registry, *names, "good")
    store.gate.clear()
    references = [registry.refer(name) for name in names]
    registry.prefetch(references)
    until(lambda: len(registry.failed) == len(names))
    assert any("other loads do not come to an end" in str(reference.error) for reference in references)
    assert sum(thread.name == "infeng-adapters" for thread in threading.enumerate()) <= MOST + MOST_STUCK
    store.gate.set()
    until(lambda: not any(thread.name.startswith("infeng-adapters") for thread in threading.enumerate()))
    use(registry, "good", "n0")


# ----------------------------------------------------------------------------------------------- unload and reload ---


def test_unloading_an_adapter_in_use_hides_its_name_and_serves_its_requests(make, store):
    registry = make()
    add(registry, "a")
    running, waiting = start(registry, "a"), registry.refer("a")
    registry.remove("a")
    with pytest.raises(RequestError, match="no adapter of that name is loaded"):
        registry.refer("a")
    with pytest.raises(AdapterError, match="there is none of that name"):
        registry.remove("a")
    assert waiting.acquire()
    assert registry.infos() == []
    running.close()
    assert store.placed == 1
    waiting.close()
    del running, waiting
    assert store.placed == 0


def test_a_waiting_request_is_served_after_its_adapter_is_unloaded(make, store):
    registry = make(most=1)
    add(registry, "a", "b")
    running, waiting = start(registry, "b"), registry.refer("a")
    registry.remove("a")
    running.close()
    registry.prefetch([waiting])
    until(waiting.acquire)
    waiting.close()
    assert resident(registry) == []


def test_the_name_of_an_unloaded_adapter_can_be_reused(make, store):
    registry = make()
    add(registry, "a")
    old = start(registry, "a")
    with pytest.raises(AdapterError, match="there is an adapter of that name"):
        add(registry, "a")
    registry.remove("a")
    registry.add("a", "org/other")
    new = start(registry, "a")
    assert old.rows[0][0].id != new.rows[0][0].id


def test_requests_finish_on_the_version_they_started_with(make, store):
    registry = make(most=1)
    store.contents["org/a"] = b"old"
    add(registry, "a")
    old = start(registry, "a")
    first_id = old.rows[0][0].id
    store.contents["org/a"] = b"new"
    registry.reload("a")
    new = start(registry, "a")
    assert old.rows[0][0].id == first_id
    assert new.rows[0][0].id == info(registry, "a").id != first_id
    assert store.placed == 2, "for as long as the old one is in use"
    old.close()
    del old
    assert store.placed == 1
    assert info(registry, "a").loads == 2


def test_reloading_an_unchanged_adapter_changes_nothing(make, store):
    registry = make()
    add(registry, "a")
    reference = start(registry, "a")
    registry.reload("a")
    assert store.placed == 1
    assert start(registry, "a").rows == reference.rows


def test_a_reload_that_fails_leaves_the_old_version(make, store):
    registry = make()
    add(registry, "a")
    use(registry, "a")
    before = info(registry, "a").id
    store.contents["org/a"] = AdapterError("adapter a", "truncated")
    with pytest.raises(AdapterError, match="truncated"):
        registry.reload("a")
    assert start(registry, "a").rows[0][0].id == before
    assert "truncated" in (info(registry, "a").error or "")


def test_changed_files_behind_a_name_are_not_used_as_the_same_adapter(make, store):
    registry = make(most=1)
    store.contents["org/a"] = b"old"
    add(registry, "a", "b")
    use(registry, "a", "b")
    store.contents["org/a"] = b"new"
    with pytest.raises(AdapterError, match=r"files have changed since they were first read: reload"):
        start(registry, "a")
    registry.reload("a")
    use(registry, "a")


# ---------------------------------------------------------------------------------------------------------- errors ---


@pytest.mark.parametrize(
    "error",
    [AdapterError("adapter a", "NaN in layers.0"), ValueError("surprise"), MemoryError()],
    ids=["typed", "unexpected", "memory"],
)
def test_a_failed_load_fails_the_requests_that_need_it(make, store, error):
    store.contents["org/a"] = error
    registry = make()
    add(registry, "a", "b")
    store.gate.clear()
    asking, also, other = registry.refer("a"), registry.refer((("b", 1.0), ("a", 0.5))), registry.refer("b")
    registry.prefetch([asking, also, other])
    store.gate.set()
    until(lambda: len(registry.failed) == 2)
    until(other.acquire)
    assert set(registry.failed) == {asking, also}
    assert isinstance(asking.error, AdapterError | ResourceError)
    assert not asking.acquire()
    assert not also.acquire()
    store.contents["org/a"] = b"mended"
    use(registry, "a")


def test_an_adapter_that_the_backend_refuses_fails_only_its_requests(make, store, monkeypatch):
    registry = make()
    add(registry, "a", "b")

    def broken(packed):
        if str(packed.source) == "org/a":
            raise RuntimeError("no such shape")
        return original(packed)

    original = registry._loading._place
    monkeypatch.setattr(registry._loading, "_place", broken)
    with pytest.raises(AdapterError, match=r"the backend cannot take it \(RuntimeError: no such shape\)"):
        start(registry, "a")
    use(registry, "b")


@pytest.mark.parametrize(
    "name", ["", "../a", "a/b", "a\\b", ".hidden", "-a", "a b", "a,b", "a*2", "a=b", "a:1", "a\n", "a\0b", "x" * 129, 7]
)
def test_ambiguous_adapter_names_are_refused(make, name):
    with pytest.raises(AdapterError, match="adapter name"):
        make().add(name, "org/a")


@pytest.mark.parametrize("name", ["base", "tiny", "org/tiny@main"])
def test_the_bases_own_names_are_refused_for_adapters(make, name):
    with pytest.raises(AdapterError, match="it means the base model"):
        make(base=base_names("org/tiny@main")).add(name, "org/a")


@pytest.mark.parametrize("name", ["a", "A.b-c_1", "sql2text", "größe", "_x"])
def test_usual_names_are_accepted(make, name):
    registry = make()
    registry.add(name, "org/a")
    assert registry.infos()[0].name == name


@pytest.mark.parametrize("source", ["no/such/directory/here", "/no/where", "", "a\0b", None, "x" * 5000])
def test_an_impossible_source_is_refused_when_it_is_named(make, source, tmp_path):
    with pytest.raises(AdapterError, match="adapter a"):
        make().add("a", source)
    make().add("a", tmp_path)
    make().add("a", str(tmp_path))
    make().add("a", Path("org/name@main"))


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "2", True, None])
def test_a_scale_is_a_finite_number(make, scale):
    with pytest.raises(AdapterError, match="scale"):
        make().add("a", "org/a", scale=scale)


def test_adapters_can_be_switched_off(make):
    with pytest.raises(AdapterError, match=r"adapters\.max_resident is 0"):
        make(most=0).add("a", "org/a")


# ---------------------------------------------------------------------------------------------------- combinations ---


def test_adapters_combine_with_weights_in_the_requests_order(make):
    registry = make()
    add(registry, "a", "b")
    reference = start(registry, (("b", 0.25), ("a", 2.0)))
    assert [weight for _, weight in reference.rows] == [0.25, 2.0]
    assert [handle.id for handle, _ in reference.rows] == [info(registry, "b").id, info(registry, "a").id]


def test_more_ranks_than_a_row_has_room_for_are_refused(make, store):
    registry = make(max_stacked_rank=32)
    add(registry, *"abc")
    use(registry, (("a", 1.0), ("b", 1.0)))
    with pytest.raises(RequestError, match=r"adapters a, b, c: their stacked ranks add up to 48.*room for 32"):
        start(registry, (("a", 1.0), ("b", 1.0), ("c", 1.0)))
    with pytest.raises(RequestError, match="stacked ranks"):
        registry.refer((("a", 1.0), ("b", 1.0), ("c", 1.0)))  # known by now


def test_a_weight_other_than_1_for_dora_is_refused(make, store):
    store.is_dora = True
    registry = make()
    add(registry, "a")
    with pytest.raises(RequestError, match=r"biases or trained tokens, so its weight can only be 1, not 0\.5"):
        start(registry, (("a", 0.5),))
    use(registry, (("a", 1.0),))


def test_a_weight_that_would_overflow_rows_is_refused(make, store):
    store.reach = 100.0
    registry = make()
    add(registry, "a")
    for weight in (1e300, -1e39, 1e19):
        with pytest.raises(RequestError, match=r"adapter a: its weight .* whose squares float32 does not hold"):
            start(registry, (("a", weight),))
    use(registry, (("a", 1e6),))


def test_a_request_for_more_adapters_than_may_be_in_memory_is_refused(make):
    registry = make(most=2)
    add(registry, *"abc")
    with pytest.raises(RequestError, match=r"3 adapters: adapters\.max_resident is 2"):
        registry.refer((("a", 1.0), ("b", 1.0), ("c", 1.0)))
    registry.pin("a")
    with pytest.raises(ResourceError, match=r"adapters b, c: adapters\.max_resident is 2, of which 1 are pinned"):
        start(registry, (("b", 1.0), ("c", 1.0)))
    use(registry, (("a", 1.0), ("c", 1.0)))


# ------------------------------------------------------------------------------------------------ waiting, closing ---


def test_a_step_that_waits_is_woken_and_can_be_interrupted(make, store):
    registry = make()
    add(registry, "a")
    assert not registry.wait(registry.changes), "nothing is under way"
    store.gate.clear()
    reference = registry.refer("a")
    registry.prefetch([reference])
    mark = registry.changes
    threading.Timer(0.02, registry.notify).start()
    assert registry.wait(mark)
    threading.Timer(0.02, registry.interrupt).start()
    with pytest.raises(KernelError, match="interrupted"):
        registry.wait(registry.changes)
    store.gate.set()
    until(reference.acquire)


def test_a_waited_adapter_is_always_either_loading_or_resident(make, store, monkeypatch):
    registry = make()
    add(registry, "a")
    reference = registry.refer("a")
    store.gate.clear()
    registry.prefetch([reference])
    mark = registry.changes
    ends = registry._loading._end
    taken, go_on = threading.Event(), threading.Event()

    def late(load, error):
        taken.set()
        registry._cache.lock.release()  # it is called under it
        assert go_on.wait(20)
        registry._cache.lock.acquire()
        ends(load, error)

    monkeypatch.setattr(registry._loading, "_end", late)
    store.gate.set()
    assert taken.wait(20)
    assert registry.wait(mark), "it is there, and that was said in the same moment"
    assert reference.acquire()
    go_on.set()


def test_closing_does_not_wait_for_running_reads(make, store):
    registry = make()
    add(registry, "a", "b")
    use(registry, "b")
    store.gate.clear()
    reference = registry.refer("a")
    registry.prefetch([reference])
    until(lambda: store.reads[-1] == "org/a")
    registry.close()
    assert store.placed == 0
    store.gate.set()
    until(lambda: not any(thread.name == "infeng-adapters" for thread in threading.enumerate()))
    assert store.placed == 0, "what was read after the end came to nothing"


def test_a_caller_waiting_for_a_pinned_load_gets_an_error_when_the_engine_closes(make, store):
    registry = make()
    store.gate.clear()
    errors: list[Exception] = []

    def load() -> None:
        try:
            registry.add("a", "org/a", pin=True)
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    until(lambda: bool(store.reads))
    registry.close()
    store.gate.set()
    thread.join(10)
    assert "closed" in str(errors[0])


def test_loads_without_waiting_requests_are_skipped(make, store):
    registry = make()
    add(registry, "a", "b")
    store.gate.clear()
    first, second = registry.refer("a"), registry.refer("b")
    registry.prefetch([first, second])
    until(lambda: store.reads == ["org/a"])
    second.close()
    store.gate.set()
    until(first.acquire)
    until(lambda: info(registry, "b").state == "registered")
    assert store.reads == ["org/a"]


def test_all_methods_may_run_on_several_threads_at_once(make, store):
    registry = make(most=5)
    errors: list[BaseException] = []
    add(registry, *(f"n{i}" for i in range(8)))

    def work(seed: int) -> None:
        try:
            for i in range(60):
                name = f"n{(i * 7 + seed) % 8}"
                reference = start(registry, name)
                assert reference.rows[0][0].nbytes > 0
                registry.infos()
                reference.close()
                if i % 9 == seed:
                    registry.reload(name)
                if i % 10 == seed:
                    own = f"own{seed}-{i}"
                    registry.add(own, f"org/{own}")
                    held = start(registry, own)
                    registry.remove(own)
                    held.close()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(resident(registry)) <= 5
    assert all(one.references == 0 and one.waiting == 0 for one in registry.infos())
