"""The client's side over HTTP: find the session, answer its messages, and see that every answer arrives.

    outcome = await contribute("https://sums.example:8750", join, prover=Prover(client, coins, key))

A request that fails is made again, with growing pauses. An answer is computed once and kept until the next stage, so
that a server that restarts gets the same bytes again; where a ``StateDirectory`` is given, this process may be killed
as well.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final

from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Reason, SecAggError
from secagg.session.roles import ClientSession
from secagg.session.sealed_state import StateDirectory

from .card import Card
from .exchange import Answer
from .keeping import ClientProgress, ClientStore
from .logs import say
from .proof import Prover, header_of
from .requests import MESSAGE, Patience, Refused, Reply, Requests
from .tls import client_context, is_loopback

try:
    import httpx
except ImportError as error:
    raise InvalidParameters("a client of sums over HTTP needs httpx; pip install secagg[http]") from error

Join = Callable[[Card, Secret | None], ClientSession]
"""Returns ``member.join(subject, update, suspended)``: what the client takes a session to be about is its own word."""
_STAGES: Final = 1000
_SCHEMES: Final = {"http", "https"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a session ended for a client that stayed."""

    card: Card
    stages: int
    """How many this process answered."""
    is_released: bool
    """Whether there is a sum, as the server says."""
    sentence: str
    """What the server says of the end."""


async def contribute(  # noqa: PLR0913 -- all but three have defaults
    url: str,
    join: Join,
    *,
    prover: Prover,
    after: str = "",
    tls: ssl.SSLContext | None = None,
    states: StateDirectory | None = None,
    patience: Patience | None = None,
    http: httpx.AsyncClient | None = None,
) -> Outcome:
    """Take part in one session, from its first message to its end.

    Args:
        after: the name of a session that this client was in; the next one is waited for.
        tls: of a server that the system's issuers do not vouch for, or that asks for this client's certificate.
        states: where progress is sealed, so that a process that is killed may go on.
        http: a client that is made already, and stays open.
    Raises:
        SecAggError: this client left; the server was told that it did, and not why.
        ConnectionError: the server refused this client, or could not be reached any more.
    """
    try:
        place = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise InvalidParameters("this is no address of a server; name https://HOST:PORT") from None
    if tls is not None and place.scheme == "http":
        raise InvalidParameters(f"{url} has no TLS, so certificates are of no use there; name an https:// address")
    if place.scheme != "https" and not is_loopback(place.host) and http is None:
        raise InvalidParameters(f"{url} would carry answers in the clear; name an https:// address, or http:// here")
    if place.scheme not in _SCHEMES or place.userinfo or place.query or not 0 <= (place.port or 0) < 1 << 16:
        raise InvalidParameters("an address of a server has neither a password nor a query; name https://HOST:PORT")
    async with AsyncExitStack() as stack:
        if http is None:
            # Nothing from the environment: neither proxies nor passwords are for this.
            own = httpx.AsyncClient(
                verify=tls or (client_context() if place.scheme == "https" else False), trust_env=False
            )
            http = await stack.enter_async_context(own)
        requests = Requests(url.rstrip("/"), http, patience or Patience(), prover.client)
        store = None if states is None else ClientStore(states, url.rstrip("/"), prover.client)
        if store is not None:
            stack.enter_context(store.held())
        return await _Part(requests, join, prover, store).run(after)


@dataclass(slots=True)
class _Part:
    """One client's part in one session."""

    requests: Requests
    join: Join
    prover: Prover
    store: ClientStore | None
    session: ClientSession | None = None
    stages: int = 0

    async def run(self, after: str) -> Outcome:
        progress = None if self.store is None else self.store.take()
        card = await self._card("" if progress else after)
        if progress is None or progress.session.hex() != card.session:
            # What was put aside for a session that is over is of no use any more.
            progress = ClientProgress(
                bytes.fromhex(card.session), self.prover.proof(card.session), 0, b"", is_last=False, suspended=b""
            )
        self.requests.enter(card.session, header_of(self.prover.client, progress.proof))
        try:
            last = await self._exchange(card, progress)
        except SecAggError:
            # Told once and never why; a server that does not hear it closes the stage without this client anyway.
            await self.requests.try_once("DELETE", "/client")
            self._forget()
            raise
        except Refused:
            self._forget()
            raise
        finally:
            if self.session is not None:
                self.session.abort()
        self._forget()
        is_released = last.status == Answer.DONE.status
        return Outcome(card=card, stages=self.stages, is_released=is_released, sentence=last.sentence)

    async def _card(self, after: str) -> Card:
        while True:
            reply = await self.requests.ask("GET", "/v1/session", params={"after": after} if after else None)
            if reply.status != Answer.AGAIN.status:
                return Card.decode(reply.body)
            await self.requests.rest()

    async def _exchange(self, card: Card, progress: ClientProgress) -> Reply:
        """Answer stage after stage, and return what the server says of the end."""
        if progress.answer:
            await self._send(progress)
        while True:
            reply = await self.requests.ask("GET", MESSAGE)
            if reply.status == Answer.OVER.status or (reply.status != Answer.AGAIN.status and not reply.stage):
                return reply
            if reply.status == Answer.AGAIN.status:
                await self.requests.rest()
                continue
            number = _number(reply)
            if not progress.answer or number != progress.stage:
                progress = await self._answered(card, progress, number, reply.body)
            else:
                await self.requests.rest()
            await self._send(progress)

    async def _send(self, progress: ClientProgress) -> None:
        """Send an answer until it is taken, or comes too late; the next message says what follows from that."""
        await self.requests.ask("POST", f"/answers/{progress.stage}", body=progress.answer)

    async def _answered(self, card: Card, before: ClientProgress, number: int, message: bytes) -> ClientProgress:
        """Compute an answer in a thread of its own, and put it aside before it is sent."""
        if before.is_last:
            raise MalformedMessage("the server asks again after this client's last answer", reason=Reason.WRONG_KIND)
        progress = await asyncio.to_thread(self._computed, card, before, number, message)
        self.stages += 1
        if len(progress.answer) > card.answer_bytes:
            raise InvalidParameters(
                f"an answer of {len(progress.answer)} bytes is too long: the server takes {card.answer_bytes} at most"
            )
        if self.store is not None:
            try:
                self.store.put(progress)
            except OSError as error:
                # Nobody waits for a client that cannot send what it has not put aside.
                raise InvalidParameters(f"this client's answer cannot be put aside ({error}); make room") from None
        return progress

    def _computed(self, card: Card, before: ClientProgress, number: int, message: bytes) -> ClientProgress:
        if self.session is None:
            suspended = Secret("suspended session", before.suspended) if before.suspended else None
            self.session = self.join(card, suspended)
        answer = self.session.answer(message)
        for fault in self.session.faults:
            say("fault", client=self.prover.client.value, sentence=str(fault))
        if self.store is None:
            return replace(before, stage=number, answer=answer)
        rest, self.session = self.session.suspend(), None
        if rest is None:
            return replace(before, stage=number, answer=answer, is_last=True, suspended=b"")
        with rest:
            return replace(before, stage=number, answer=answer, suspended=bytes(rest.expose()))

    def _forget(self) -> None:
        if self.store is not None:
            self.store.erase()


def _number(reply: Reply) -> int:
    if not (reply.stage.isascii() and reply.stage.isdecimal() and len(reply.stage) < len(str(_STAGES))):
        raise MalformedMessage("the server's message names no stage", reason=Reason.NOT_CANONICAL)
    return int(reply.stage)
