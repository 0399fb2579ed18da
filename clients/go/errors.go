package buckram

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Code names what went wrong, as the gateway spells it. A Code is an error, so that errors.Is finds it:
//
//	if errors.Is(err, buckram.ErrNoSuchStream) { ... }
type Code string

// Error returns the code itself.
func (c Code) Error() string { return string(c) }

// Codes that programs ask for. A gateway may send others; Error.Code has what it sent.
const (
	ErrInvalidArgument    Code = "INVALID_ARGUMENT"
	ErrUnauthorized       Code = "UNAUTHORIZED"
	ErrForbidden          Code = "FORBIDDEN"
	ErrReadOnly           Code = "READ_ONLY"
	ErrNoSuchNamespace    Code = "NO_SUCH_NAMESPACE"
	ErrNamespaceExists    Code = "NAMESPACE_EXISTS"
	ErrNamespaceNotEmpty  Code = "NAMESPACE_NOT_EMPTY"
	ErrNoSuchStream       Code = "NO_SUCH_STREAM"
	ErrStreamExists       Code = "STREAM_EXISTS"
	ErrStreamEnded        Code = "STREAM_ENDED"
	ErrOffsetMismatch     Code = "OFFSET_MISMATCH"
	ErrOffsetOutOfRange   Code = "OFFSET_OUT_OF_RANGE"
	ErrOffsetTruncated    Code = "OFFSET_TRUNCATED"
	ErrOutOfOrderSequence Code = "OUT_OF_ORDER_SEQUENCE"
	ErrProducerForgotten  Code = "PRODUCER_FORGOTTEN"
	ErrRecordTooLarge     Code = "RECORD_TOO_LARGE"
	ErrTooLarge           Code = "TOO_LARGE"
	ErrTxidOutOfOrder     Code = "TXID_OUT_OF_ORDER"
	ErrWriterExists       Code = "WRITER_EXISTS"
	ErrWriterLost         Code = "WRITER_LOST"
	ErrQuotaExceeded      Code = "QUOTA_EXCEEDED"
	ErrNoSuchCursor       Code = "NO_SUCH_CURSOR"
	ErrCursorMoved        Code = "CURSOR_MOVED"
	ErrNoSuchLedger       Code = "NO_SUCH_LEDGER"
	ErrNoSuchEntry        Code = "NO_SUCH_ENTRY"
	ErrLedgerClosed       Code = "LEDGER_CLOSED"
	ErrLedgerFenced       Code = "LEDGER_FENCED"
	ErrLedgerOfStream     Code = "LEDGER_OF_STREAM"
	ErrNoSuchObject       Code = "NO_SUCH_OBJECT"
	ErrObjectExists       Code = "OBJECT_EXISTS"
	ErrObjectChanged      Code = "OBJECT_CHANGED"
	ErrNameBlocked        Code = "NAME_BLOCKED"
	ErrUploadIncomplete   Code = "UPLOAD_INCOMPLETE"
	ErrRangeOutside       Code = "RANGE_NOT_SATISFIABLE"
	ErrGatewayFull        Code = "GATEWAY_FULL"
	ErrGatewayStops       Code = "GATEWAY_STOPS"
	ErrTooManyConnections Code = "TOO_MANY_CONNECTIONS"
	ErrTooManyTails       Code = "TOO_MANY_TAILS"
	ErrOtherGateway       Code = "OTHER_GATEWAY"

	// ErrOutcomeUnknown is found in every error of a change that may have been carried out, or not.
	ErrOutcomeUnknown Code = "OUTCOME_UNKNOWN"
	// ErrProducerInDoubt: a Producer has records whose outcome is unknown, and sent no others.
	ErrProducerInDoubt Code = "PRODUCER_IN_DOUBT"
	// ErrUnreachable: no gateway answered, and nothing was changed.
	ErrUnreachable Code = "UNREACHABLE"
	// ErrBadAnswer: what answered is no gateway, or one that this client does not understand.
	ErrBadAnswer Code = "BAD_ANSWER"
)

// Error is what every call returns that failed at a gateway or on the way to it.
type Error struct {
	// Op says what was tried, such as "append to stream shop/orders".
	Op string
	// Status is that of HTTP; 0 where no answer came.
	Status int
	// Code is the gateway's, or one of this client's own: ErrOutcomeUnknown, ErrUnreachable, ErrBadAnswer, ErrProducerInDoubt.
	Code Code
	// Message names the value, the limit and what to do.
	Message string
	// Retryable: the gateway says that the same may succeed later.
	Retryable bool
	// RetryAfter says when; 0 where the gateway does not say.
	RetryAfter time.Duration
	// Unknown: the change may have been carried out, or not.
	Unknown bool
	// Details are the further fields of the answer, such as "earliest", "expected" and "limit".
	Details map[string]any

	cause error
}

// Error returns what was tried, and why it failed.
func (e *Error) Error() string {
	text := e.Op + ": " + e.Message
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	if e.Status != 0 {
		text += fmt.Sprintf(" (%d %s)", e.Status, e.Code)
	}
	return text
}

// Is finds a Code.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && (code == e.Code || code == ErrOutcomeUnknown && e.Unknown)
}

// Unwrap returns the error below, such as that of a context or a connection.
func (e *Error) Unwrap() error { return e.cause }

// Number returns a whole number among the details.
func (e *Error) Number(name string) (int64, bool) {
	number, ok := e.Details[name].(json.Number)
	if !ok {
		return 0, false
	}
	value, err := number.Int64()
	return value, err == nil
}

// notBegun are answers of gateways that did nothing yet: whatever was asked may be asked again.
var notBegun = map[Code]bool{
	ErrGatewayFull: true, ErrGatewayStops: true, ErrTooManyConnections: true, ErrTooManyTails: true,
}

// problem makes the error of an answer.
func problem(op string, answer *answer) *Error {
	found := &Error{Op: op, Status: answer.status, Message: http.StatusText(answer.status), Code: ErrBadAnswer}
	var fields map[string]any
	if decodeJSON(answer.body, &fields) == nil {
		if code, ok := fields["code"].(string); ok {
			found.Code = Code(code)
		}
		if message, ok := fields["message"].(string); ok {
			found.Message = message
		}
		found.Retryable, _ = fields["retryable"].(bool)
		for _, known := range []string{"code", "message", "retryable"} {
			delete(fields, known)
		}
		found.Details = fields
	}
	if seconds, err := strconv.Atoi(answer.header.Get("Retry-After")); err == nil && seconds >= 0 {
		found.RetryAfter = min(time.Duration(seconds)*time.Second, longestWait)
		found.Retryable = true
	}
	// Proxies on the way answer with 502 and 504, and do not know what became of the request.
	found.Unknown = answer.header.Get(outcomeHeader) == "unknown" || answer.status == http.StatusBadGateway ||
		answer.status == http.StatusGatewayTimeout
	return found
}

func badAnswer(op, message string, cause error) *Error {
	return &Error{Op: op, Code: ErrBadAnswer, Message: message, cause: cause}
}

func badArgument(op, message string) *Error {
	return &Error{Op: op, Code: ErrInvalidArgument, Message: message}
}

// asError is the *Error in a chain, nil if there is none.
func asError(err error) *Error {
	var found *Error
	if errors.As(err, &found) {
		return found
	}
	return nil
}
