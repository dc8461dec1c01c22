"""Queries for each model with their expected answers: for the unchanged model, and for the model without a check.

A check has the name of its mark in the model, and is listed with the library's function that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Answer(StrEnum):
    """ProVerif's answer to a query; every other answer is a failure."""

    HOLDS = "holds"
    ATTACK = "attack found"
    REACHED = "reached"
    """An event that must be reachable, so that queries do not hold just because nothing can happen."""


@dataclass(frozen=True, slots=True)
class Case:
    """One query of one model, without some checks."""

    model: str
    query: str
    answer: Answer = Answer.HOLDS
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        less = f" without {' and '.join(self.missing)}" if self.missing else ""
        return f"{self.model}{less}: {self.query}"


CHECKS = {
    ("keys", "terms"): "secagg.protocols.pairwise_mask.client:Client._require_subject",
    ("keys", "opening"): "secagg.protocols.pairwise_mask.round0_advertise_keys:accept_advertised_keys",
    ("keys", "certificate"): "secagg.protocols.pairwise_mask.round0_advertise_keys:verify_entry",
    ("keys", "certified client"): "secagg.session.certificates:Authority.verify",
    ("keys", "advertisement"): "secagg.protocols.pairwise_mask.round0_advertise_keys:verify_entry",
    ("keys", "signed attempt"): "secagg.protocols.pairwise_mask.round0_advertise_keys:verify_entry",
    ("keys", "signed mask key"): "secagg.protocols.pairwise_mask.round0_advertise_keys:sign_advertisement",
    ("keys", "own entry"): "secagg.protocols.pairwise_mask.round0_advertise_keys:accept_advertised_keys",
    ("keys", "context of the roster"): "secagg.protocols.pairwise_mask.configuration:roster_of",
    ("keys", "delivered entry"): "secagg.protocols.pairwise_mask.round1_share_keys:verify_delivered_entry",
    ("keys", "signed context"): "secagg.protocols.pairwise_mask.round1_share_keys:verify_delivered_entry",
    ("survivors", "cohort of sharers"): "secagg.protocols.pairwise_mask.round2_masked_input:mask_input",
    ("survivors", "own sharers"): "secagg.protocols.pairwise_mask.rounds3_4_unmasking:confirm_survivors",
    ("survivors", "signer contributed"): "secagg.protocols.pairwise_mask.rounds3_4_unmasking:check_survivors",
    ("survivors", "holder contributed"): "secagg.protocols.pairwise_mask.rounds3_4_unmasking:check_survivors",
    ("survivors", "contributors shared"): "secagg.protocols.pairwise_mask.rounds3_4_unmasking:check_survivors",
    ("survivors", "cohort"): "secagg.protocols.pairwise_mask.rounds3_4_unmasking:check_survivors",
    ("survivors", "one endorsement"): "secagg.protocols.pairwise_mask.client:Client._answer",
    ("survivors", "certificate"): "secagg.protocols.pairwise_mask.rounds3_4_unmasking:reveal_shares",
    ("survivors", "views"): "secagg.protocols.pairwise_mask.rounds3_4_unmasking:reveal_shares",
    ("hybrid", "X25519 holds"): "",
    ("hybrid", "ML-KEM holds"): "",
    ("hybrid", "labels of the halves"): "secagg.crypto.hybrid_key_agreement:HybridKeyPair.__init__",
    ("hybrid", "both halves"): "secagg.crypto.hybrid_key_agreement:HybridPublicKey.seal",
    ("hybrid", "keys of the purpose"): "secagg.protocols.pairwise_mask.round0_advertise_keys:advertise_keys",
    ("hybrid", "suite floor"): "secagg.protocols.pairwise_mask.configuration:SessionConfiguration.compared",
    ("hybrid", "bound context"): "secagg.protocols.pairwise_mask.suites:HybridSuite.open_shares",
    ("hybrid", "bound sender"): "secagg.protocols.pairwise_mask.suites:HybridSuite.open_shares",
    ("hybrid", "bound purpose"): "secagg.crypto.hybrid_key_agreement:open_edge_seed",
    ("classic", "believed keys"): "secagg.protocols.pairwise_mask.round0_advertise_keys:verify_entry",
    ("classic", "context of the key"): "secagg.crypto.key_agreement:X25519KeyPair.channel_key_from",
    ("classic", "direction of the key"): "secagg.crypto.key_agreement:X25519KeyPair.channel_key_from",
    ("classic", "context of the header"): "secagg.crypto.aead:open_sealed",
    ("classic", "direction of the header"): "secagg.crypto.aead:open_sealed",
    ("classic", "place of the commitment"): "secagg.protocols.pairwise_mask.suites:SharePlace.commit_to",
    ("classic", "it opens"): "secagg.protocols.pairwise_mask.suites:ClassicSuite.open_shares",
    ("classic", "it fits"): "secagg.protocols.pairwise_mask.round2_masked_input:_check_shares",
    ("classic", "signed entry"): "secagg.protocols.pairwise_mask.round1_share_keys:verify_delivered_entry",
    ("classic", "bound answer"): "secagg.protocols.pairwise_mask.rounds3_4_unmasking:signed_unmasking",
    ("classic", "context of the seed"): "secagg.crypto.key_agreement:X25519KeyPair.pairwise_seed",
    ("classic", "ends of the seed"): "secagg.crypto.key_agreement:X25519KeyPair.pairwise_seed",
    ("inputs", "fresh roots"): "secagg.protocols.pairwise_mask.round0_advertise_keys:advertise_keys",
    ("inputs", "seed of the context"): "secagg.crypto.hybrid_key_agreement:edge_seed",
    ("inputs", "key of the context"): "secagg.protocols.pairwise_mask.round2_masked_input:pairwise_mask_key",
    ("inputs", "every edge"): "secagg.protocols.pairwise_mask.round2_masked_input:mask_input",
    ("one_message", "record"): "secagg.protocols.one_message.configuration:verify_epoch",
    ("one_message", "bound record"): "secagg.protocols.one_message.holder:make_holder_keys",
    ("one_message", "holder keys"): "secagg.protocols.one_message.configuration:verify_epoch",
    ("one_message", "signed terms"): "secagg.protocols.one_message.messages:challenge_of",
    ("one_message", "sealed terms"): "secagg.protocols.one_message.messages:sealing_info",
    ("one_message", "upload"): "secagg.protocols.one_message.requests:require_signed",
    ("one_message", "certificate"): "secagg.protocols.one_message.requests:require_certificate",
    ("one_message", "one list"): "secagg.protocols.one_message.holder:Holder.respond",
    ("enclave", "measurement"): "secagg.protocols.enclave.judge:HardwareJudge.judge",
    ("enclave", "own configuration"): "secagg.protocols.enclave.verified_enclave:VerifiedEnclave.__init__",
    ("enclave", "bound key"): "secagg.protocols.enclave.attestation.policy:Policy.check",
    ("enclave", "evidence"): "secagg.protocols.enclave.judge:HardwareJudge.judge",
    ("enclave", "certificate"): "secagg.protocols.enclave.trusted.enclave:Enclave.receive",
    ("enclave", "proven header"): "secagg.protocols.enclave.trusted.messages:proof_of",
    ("enclave", "sealed header"): "secagg.protocols.enclave.trusted.messages:sealing_info",
    ("enclave", "proof"): "secagg.protocols.enclave.trusted.enclave:Enclave.receive",
    ("enclave", "receipt"): "secagg.protocols.enclave.verified_enclave:VerifiedEnclave.verify_receipt",
}
"""Each check of a model with the library's function that makes it; an assumption has none."""

OWNERS = "believed keys are its owner's, of this attempt"
ROSTER = "both ends have one roster, context and terms"
ALONE = "what is sealed opens in its context, direction and purpose alone"
SEALED = "what is sealed is secret"
TAKEN = "a pair that is taken is its sender's, for this client, in this context"
BLAMED = "who alone is blamed has signed"
LIED = "a holder that is blamed for a share is corrupted"
SEED = "a seed is of one pair in one context"
INPUTS = "inputs are secret"
BOTH = "never both secrets"
ONE_PAIR = "one pair of sets is answered for"
SWAP = "inputs can be swapped"
THEIR_KEYS = "holders' keys are their own, of this epoch"
UPLOAD = "an upload is its client's, for this agreement and sum"
OWN_CONFIGURATION = "keys are an enclave's of the client's own configuration"
COUNTED = "what is counted is its client's, for this configuration, epoch and model"

AS_IT_IS = (
    Case("keys", "an upload can be reached", Answer.REACHED),
    Case("keys", INPUTS),
    Case("keys", "mask roots are secret"),
    Case("keys", OWNERS),
    Case("keys", "a roster has one graph"),
    Case("keys", "a client is in a context once"),
    Case("keys", ROSTER),
    Case("survivors", "all three can be unmasked", Answer.REACHED),
    Case("survivors", "a dropout can be unmasked", Answer.REACHED),
    Case("survivors", INPUTS),
    Case("survivors", BOTH),
    Case("survivors", ONE_PAIR),
    Case("survivors", "a seed is shown of who masked under the same sharers"),
    Case("survivors", "a member endorses the sharers it masked under"),
    Case("survivors", "a member endorses only sets that hold it"),
    Case("survivors", "who is declared dropped does not answer"),
    Case("survivors", "contributors shared keys"),
    Case("survivors", "no sum of a single honest client"),
    Case("hybrid", "what is sealed can be opened", Answer.REACHED),
    Case("hybrid", SEALED),
    Case("hybrid", ALONE),
    Case("classic", "a pair can be taken", Answer.REACHED),
    Case("classic", "somebody can be blamed", Answer.REACHED),
    Case("classic", TAKEN),
    Case("classic", "dealt pairs are secret"),
    Case("classic", "a holder can be blamed", Answer.REACHED),
    Case("classic", BLAMED),
    Case("classic", LIED),
    Case("classic", "seeds are secret"),
    Case("classic", SEED),
    Case("inputs", SWAP),
    Case("one_message", "a list can be answered", Answer.REACHED),
    Case("one_message", "what is dealt is secret"),
    Case("one_message", THEIR_KEYS),
    Case("one_message", "holders are those whom the authority named"),
    Case("one_message", UPLOAD),
    Case("one_message", "one list of a sum is answered"),
    Case("enclave", "an upload can be counted", Answer.REACHED),
    Case("enclave", "seeds are secret"),
    Case("enclave", OWN_CONFIGURATION),
    Case("enclave", COUNTED),
    Case("enclave", "a receipt is the enclave's"),
)
STILL = (
    Case("hybrid", SEALED, missing=("X25519 holds",)),
    Case("hybrid", SEALED, missing=("ML-KEM holds",)),
    Case("hybrid", ALONE, missing=("X25519 holds",)),
    Case("hybrid", ALONE, missing=("ML-KEM holds",)),
    # Two checks prevent each of these attacks; the next list removes the second one as well.
    Case("hybrid", ALONE, missing=("bound purpose",)),
    Case("survivors", INPUTS, missing=("cohort of sharers",)),
    Case("survivors", INPUTS, missing=("views",)),
    Case("survivors", "no sum of a single honest client", missing=("cohort",)),
    Case("classic", TAKEN, missing=("signed entry",)),
    # Here three checks overlap with the signature: the derivation of the key, the header, and the commitment.
    Case("classic", TAKEN, missing=("signed entry", "context of the key", "context of the header")),
    Case("classic", TAKEN, missing=("signed entry", "context of the key", "place of the commitment")),
    Case("classic", TAKEN, missing=("signed entry", "context of the header", "place of the commitment")),
    Case("classic", TAKEN, missing=("signed entry", "direction of the key", "place of the commitment")),
    Case("classic", TAKEN, missing=("signed entry", "direction of the header", "place of the commitment")),
    Case("inputs", SWAP, missing=("fresh roots",)),
    Case("inputs", SWAP, missing=("seed of the context", "key of the context")),
    Case("one_message", UPLOAD, missing=("signed terms",)),
    Case("one_message", UPLOAD, missing=("sealed terms",)),
    Case("enclave", COUNTED, missing=("proven header",)),
    Case("enclave", COUNTED, missing=("sealed header",)),
)
"""Queries that hold although something is missing."""
PLANTED = tuple(
    Case(model, query, Answer.ATTACK, missing)
    for model, query, *names in (
        ("keys", ROSTER, "terms"),
        ("keys", "a roster has one graph", "opening"),
        ("keys", OWNERS, "certificate"),
        ("keys", INPUTS, "certificate"),
        ("keys", OWNERS, "certified client"),
        ("keys", OWNERS, "advertisement"),
        ("keys", "mask roots are secret", "advertisement"),
        ("keys", OWNERS, "signed attempt"),
        ("keys", OWNERS, "signed mask key"),
        ("keys", "a client is in a context once", "own entry"),
        ("keys", ROSTER, "context of the roster"),
        ("keys", ROSTER, "delivered entry"),
        ("keys", INPUTS, "delivered entry"),
        ("keys", ROSTER, "signed context"),
        ("survivors", INPUTS, "certificate"),
        ("survivors", BOTH, "certificate"),
        ("survivors", ONE_PAIR, "certificate"),
        ("survivors", INPUTS, "one endorsement"),
        ("survivors", BOTH, "one endorsement"),
        ("survivors", ONE_PAIR, "one endorsement"),
        ("survivors", "a seed is shown of who masked under the same sharers", "views"),
        ("survivors", INPUTS, "views", "cohort of sharers"),
        ("survivors", "a member endorses the sharers it masked under", "own sharers"),
        ("survivors", "a member endorses only sets that hold it", "signer contributed"),
        ("survivors", "who is declared dropped does not answer", "holder contributed"),
        ("survivors", "contributors shared keys", "contributors shared"),
        ("survivors", "no sum of a single honest client", "cohort", "signer contributed"),
        ("hybrid", SEALED, "X25519 holds", "ML-KEM holds"),
        ("hybrid", SEALED, "X25519 holds", "labels of the halves"),
        ("hybrid", SEALED, "X25519 holds", "both halves"),
        ("hybrid", SEALED, "X25519 holds", "suite floor"),
        ("hybrid", ALONE, "bound context"),
        ("hybrid", ALONE, "bound sender"),
        ("hybrid", ALONE, "bound purpose", "keys of the purpose"),
        ("classic", TAKEN, "signed entry", "it opens"),
        ("classic", TAKEN, "signed entry", "it fits"),
        ("classic", TAKEN, "signed entry", "context of the key", "context of the header", "place of the commitment"),
        (
            "classic",
            TAKEN,
            "signed entry",
            "direction of the key",
            "direction of the header",
            "place of the commitment",
        ),
        ("classic", "dealt pairs are secret", "believed keys"),
        ("classic", BLAMED, "signed entry"),
        ("classic", LIED, "bound answer"),
        ("classic", LIED, "it fits"),
        ("classic", "seeds are secret", "believed keys"),
        ("classic", SEED, "context of the seed"),
        ("classic", SEED, "ends of the seed"),
        ("inputs", SWAP, "fresh roots", "seed of the context", "key of the context"),
        ("inputs", SWAP, "every edge"),
        ("one_message", "holders are those whom the authority named", "record"),
        ("one_message", THEIR_KEYS, "bound record"),
        ("one_message", THEIR_KEYS, "holder keys"),
        ("one_message", "what is dealt is secret", "holder keys"),
        ("one_message", UPLOAD, "upload"),
        ("one_message", UPLOAD, "signed terms", "sealed terms"),
        ("one_message", "one list of a sum is answered", "certificate"),
        ("one_message", "one list of a sum is answered", "one list"),
        ("enclave", "seeds are secret", "measurement"),
        ("enclave", OWN_CONFIGURATION, "own configuration"),
        ("enclave", "seeds are secret", "bound key"),
        ("enclave", "seeds are secret", "evidence"),
        ("enclave", COUNTED, "certificate"),
        ("enclave", COUNTED, "proof"),
        ("enclave", COUNTED, "proven header", "sealed header"),
        ("enclave", "a receipt is the enclave's", "receipt"),
    )
    for missing in (tuple(names),)
)
CASES = (*AS_IT_IS, *STILL, *PLANTED)
