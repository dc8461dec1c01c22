"""Suites and modes: names and key lengths."""

from __future__ import annotations

from secagg.parameters import SecurityMode, Suite


def test_each_suite_has_the_length_of_its_mask_keys() -> None:
    assert {suite: suite.mask_key_bytes for suite in Suite} == {Suite.CLASSIC: 16, Suite.HYBRID: 32}


def test_the_names_on_the_wire_are_pinned() -> None:
    assert {suite.value for suite in Suite} == {"x25519-aes128", "mlkem768x25519-aes256"}
    assert {mode.value for mode in SecurityMode} == {"semi_honest", "active"}
