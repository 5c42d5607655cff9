"""What a config says of itself is asked once, and kept no longer than the config lives."""

from __future__ import annotations

import gc
from weakref import ref

from penstock.engine.core import traits
from penstock.engine.core.traits import Columns, Traits, forget_traits, traits_of


class Telling:
    def __init__(self) -> None:
        self.asked = 0

    @property
    def traits(self) -> Traits:
        self.asked += 1
        return Traits(needs_order=True)


def test_config_is_asked_once_and_forgotten_with_it() -> None:
    config, other = Telling(), Telling()
    assert [traits_of(config), traits_of(config)] == [Traits(needs_order=True)] * 2
    assert (config.asked, other.asked) == (1, 0)
    before, place = len(traits._known), id(config)
    del config
    gc.collect()
    assert place not in traits._known
    assert len(traits._known) < before


def test_config_that_cannot_be_watched_is_asked_each_time() -> None:
    assert [traits_of((1, 2)), traits_of((1, 2))] == [Traits()] * 2


class OfItself(Telling):
    """Its traits refer to it, as those of most operators do."""

    @property
    def traits(self) -> Traits:
        return Traits(columns=self._columns)

    def _columns(self, inputs: object) -> list[Columns]:
        return []


def test_configs_whose_traits_refer_to_them_do_not_add_up() -> None:
    forget_traits()
    kept = []
    for _ in range(traits.MOST_KNOWN + 1):
        config = OfItself()
        traits_of(config)
        kept.append(ref(config))
    del config
    gc.collect()
    assert 0 < sum(each() is not None for each in kept) <= traits.MOST_KNOWN
    forget_traits()
    assert all(each() is None for each in kept)
