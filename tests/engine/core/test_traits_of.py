"""What a config says of itself is asked once, and kept no longer than the config lives."""

from __future__ import annotations

import gc

from penstock.engine.core import traits
from penstock.engine.core.traits import Traits, traits_of


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
