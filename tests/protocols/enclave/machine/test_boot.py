"""The first process of an enclave's machine: what it reads of the command line, and which machine it refuses."""

from __future__ import annotations

import sys

import pytest

from secagg.errors import InvalidParameters

if sys.platform != "linux":
    pytest.skip("an enclave's machine runs Linux", allow_module_level=True)

from secagg.protocols.enclave.machine import boot


def test_its_words_stand_once_on_the_command_line() -> None:
    line = "console=ttyS0 quiet secagg.listen=virtio:secagg secagg.evidence=nsm secagg.memory=96\n"
    assert boot.told(line) == {"listen": "virtio:secagg", "evidence": "nsm", "memory": "96"}
    with pytest.raises(InvalidParameters, match=r"says secagg\.evidence twice"):
        boot.told(line + "secagg.evidence=simulated")
    for stray in ("secagg.treads=4", "secagg.", 'secagg.evidence"=x'):
        with pytest.raises(InvalidParameters, match="there are evidence, heartbeat, listen, memory, threads"):
            boot.told(f"quiet {stray}")


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ""])
def test_numbers_are_numbers(text: str) -> None:
    with pytest.raises(InvalidParameters, match=r"secagg\.memory is a number from 1"):
        boot.number_of({"memory": text}, "memory", 256)
    assert boot.number_of({}, "memory", 256) == 256


@pytest.mark.parametrize("line", ["flags\t\t: fpu rdrand sse", "Features\t: fp rng"])
def test_a_processor_with_a_generator_is_enough(line: str) -> None:
    boot.require_generator(f"model name : x\n{line}\n", has_security_module=False)


def test_randomness_of_the_host_is_refused() -> None:
    processor = "model name : rdrand\nflags\t\t: fpu sse\n"
    with pytest.raises(InvalidParameters, match="the host's is not to be trusted"):
        boot.require_generator(processor, has_security_module=False)
    boot.require_generator(processor, has_security_module=True)
