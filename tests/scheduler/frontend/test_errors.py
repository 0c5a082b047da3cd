"""The table from errors to statuses is complete, and retrying is advised where it may help."""

from __future__ import annotations

import grpc
import pytest

from scheduler.core.result import EndReason
from scheduler.frontend.errors import (
    DrainingError,
    DuplicateRequestError,
    InvalidRequestError,
    MalformedRequestError,
    RejectedError,
    RequestError,
    SequenceEndedError,
    UnknownModelError,
    Violation,
    status_of,
)
from scheduler.messages import Rejected


def rejected(kind: str, field: str = "max_tokens") -> RejectedError:
    message = "needs 13 blocks, pool 12"
    refusal = Rejected(sequence_id=1, kind=kind, message=message, field=field, value="13", limit="12")
    return RejectedError(refusal, prompt_field="token_ids.ids")


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [
        (InvalidRequestError((Violation(field="a", description="b"),)), "INVALID_ARGUMENT", False),
        (MalformedRequestError("/a/B", ValueError("c")), "INVALID_ARGUMENT", False),
        (UnknownModelError(model="a", served="b"), "NOT_FOUND", False),
        (DuplicateRequestError("a"), "ALREADY_EXISTS", False),
        (DrainingError(), "UNAVAILABLE", True),
        (rejected("InvalidSequenceError"), "INVALID_ARGUMENT", False),
        (rejected("NeverFitsError"), "INVALID_ARGUMENT", False),
        (rejected("DuplicateSequenceError"), "ALREADY_EXISTS", False),
        (rejected("QueueFullError"), "RESOURCE_EXHAUSTED", True),
        (rejected("SomethingElse"), "INTERNAL", False),
        (SequenceEndedError(EndReason.ABORT, 3), "CANCELLED", False),
        (SequenceEndedError(EndReason.DEADLINE, 3), "DEADLINE_EXCEEDED", False),
        (SequenceEndedError(EndReason.NON_FINITE, 3), "INTERNAL", False),
        (SequenceEndedError(EndReason.CAPACITY, 3), "RESOURCE_EXHAUSTED", False),
        (SequenceEndedError(EndReason.WORKER_LOST, 3), "UNAVAILABLE", True),
        (RequestError("x"), "INTERNAL", False),
    ],
    ids=lambda value: str(value) if isinstance(value, Exception) else None,
)
def test_status(error: RequestError, code: str, retry: bool) -> None:
    status = status_of(error)
    assert status.code is grpc.StatusCode[code]
    assert (status.retry_seconds is not None) is retry


def test_every_bad_end_has_a_status_and_a_message() -> None:
    for reason in set(EndReason) - {EndReason.STOP, EndReason.LENGTH}:
        assert status_of(SequenceEndedError(reason, 3)).reason != "INTERNAL"
        assert "(after 3 tokens)" in str(SequenceEndedError(reason, 3))


def test_a_lost_worker_is_explained_where_the_cause_is_known() -> None:
    lost = "the worker was lost and none came back in time"
    assert str(SequenceEndedError(EndReason.WORKER_LOST, 3)) == f"{lost} (after 3 tokens)"
    error = SequenceEndedError(EndReason.WORKER_LOST, 3, "the worker serves another model")
    assert str(error) == f"{lost}: the worker serves another model (after 3 tokens)"


def test_a_refusal_of_the_core_names_the_field_of_the_request() -> None:
    error = rejected("NeverFitsError")
    assert error.violations == (Violation(field="sampling_params.max_tokens", description="needs 13 blocks, pool 12"),)
    assert error.metadata() == {"field": "sampling_params.max_tokens", "value": "13", "limit": "12"}
    assert rejected("NeverFitsError", field="prompt").violations[0].field == "token_ids.ids"
    assert rejected("InvalidSequenceError", field="n").violations[0].field == "sampling_params.n"
    assert rejected("QueueFullError").violations == ()
