package buckram

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	mostHops    = 5
	firstPause  = 100 * time.Millisecond
	longestStep = 2 * time.Second
)

// exchange is one request with all its attempts.
type exchange struct {
	client *Client
	ask    *request
	key    string
	// suspect is the process that may have carried the request out, once an answer was lost.
	suspect process
	inDoubt bool
	// watch ends an attempt whose body stands still.
	watch *time.Timer
}

// call sends a request until it is answered or must not be sent again. Its answer has a status below 300.
func (c *Client) call(ctx context.Context, r *request) (*answer, error) {
	x := &exchange{client: c, ask: r}
	if r.changes() && r.repeated == byKey {
		x.key = newKey()
	}
	for attempt := 1; ; attempt++ {
		got, err := x.attempt(ctx)
		if err == nil {
			return got, nil
		}
		if ctx.Err() != nil {
			return nil, x.ended(ctx, err)
		}
		if attempt >= c.attempts || !x.mayRepeat(err) || r.source != nil && !r.source.mayGoBack() {
			return nil, x.final(err)
		}
		pause := pauseBefore(attempt, err)
		c.log.Info("a request is sent again", "request", r.op, "attempt", attempt+1, "pause", pause, "error", err)
		if !sleep(ctx, pause) {
			return nil, x.ended(ctx, err)
		}
	}
}

// lostAnswer is the error of a request that was sent to a process and not answered.
type lostAnswer struct {
	by    process
	cause error
}

func (l *lostAnswer) Error() string { return fmt.Sprintf("%s did not answer: %v", l.by.base, l.cause) }
func (l *lostAnswer) Unwrap() error { return l.cause }

// notSent is the error of a request that never reached a gateway.
type notSent struct {
	base  string
	cause error
}

func (n *notSent) Error() string { return fmt.Sprintf("%s cannot be reached: %v", n.base, n.cause) }
func (n *notSent) Unwrap() error { return n.cause }

// attempt sends the request once, and again wherever it is sent on to.
func (x *exchange) attempt(ctx context.Context) (*answer, error) {
	ctx, cancel := x.limited(ctx)
	defer cancel()
	at := x.client.gateways.choose(x.ask.route)
	if x.inDoubt && x.key != "" {
		at = x.suspect
	}
	for hop := 0; hop < mostHops; hop++ {
		got, err := x.send(ctx, &at)
		if err != nil {
			return nil, err
		}
		if got.status < 300 {
			return got, nil
		}
		if got.status != http.StatusTemporaryRedirect {
			return nil, x.refused(got)
		}
		if x.inDoubt && x.key != "" {
			return nil, x.lostTrack("the gateway that may have done it sends the request on now")
		}
		base, err := redirection(x.ask, got)
		if err != nil {
			return nil, err
		}
		x.client.gateways.has(x.ask.route, base)
		at = x.client.gateways.at(base)
	}
	return nil, badAnswer(x.ask.op, fmt.Sprintf("the request was sent on %d times", mostHops), nil)
}

// limited bounds an attempt: as a whole, or, where its body comes from a reader, how long nothing of that goes on.
func (x *exchange) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if x.ask.source == nil {
		return context.WithTimeout(ctx, x.client.timeout)
	}
	ctx, watch, cancel := patient(ctx, x.client.timeout)
	x.watch = watch
	return ctx, cancel
}

// send sends the request to one gateway, whose id becomes known.
func (x *exchange) send(ctx context.Context, at *process) (*answer, error) {
	if x.key != "" && at.id == "" {
		if err := x.client.identify(ctx, at); err != nil {
			return nil, err
		}
	}
	key := x.key
	if at.id == "" {
		key = "" // it could not be said which process knows it
	}
	built, err := x.client.build(ctx, x.ask, at.base, key, at.id)
	if err != nil {
		return nil, badArgument(x.ask.op, err.Error())
	}
	body := x.ask.source
	if body == nil {
		return x.client.exchangeOnce(x.client.http, built, *at)
	}
	if !body.mayGoBack() {
		return nil, badAnswer(x.ask.op, at.base+" sends the request on, and its bytes come from a reader that cannot go back", nil)
	}
	if err := body.attach(built, x.watch, x.client.timeout); err != nil {
		return nil, badArgument(x.ask.op, err.Error())
	}
	got, err := x.client.exchangeOnce(x.client.http, built, *at)
	body.wait(ctx)
	if err != nil && body.settled() && body.failed != nil {
		// The gateway has seen a body without its end, of which nothing counts.
		return nil, &Error{Op: x.ask.op, Code: ErrInvalidArgument, Message: "the bytes cannot be read", cause: body.failed}
	}
	return got, err
}

// exchangeOnce sends a request once and reads the answer. The error is *notSent or *lostAnswer.
func (c *Client) exchangeOnce(sender *http.Client, built *http.Request, at process) (*answer, error) {
	got, err := sender.Do(built)
	if err != nil {
		if beforeSending(err) {
			c.gateways.failed(at.base)
			return nil, &notSent{at.base, bare(err)}
		}
		return nil, &lostAnswer{at, bare(err)}
	}
	if id := got.Header.Get(gatewayHeader); id != "" {
		c.gateways.answered(at.base, id)
		at.id = id
	}
	whole, err := readAnswer(got, at)
	if err != nil {
		return nil, &lostAnswer{at, err}
	}
	return whole, nil
}

// identify finds out which process is at an address. One that does not say it is an older gateway.
func (c *Client) identify(ctx context.Context, at *process) error {
	r := &request{op: "ask who is at " + at.base, method: http.MethodGet, path: "/health"}
	built, err := c.build(ctx, r, at.base, "", "")
	if err != nil {
		return badArgument(r.op, err.Error())
	}
	got, err := c.exchangeOnce(c.http, built, *at)
	if err != nil {
		var lost *lostAnswer
		if errors.As(err, &lost) { // only this question was lost
			return &notSent{at.base, lost.cause}
		}
		return err
	}
	if got.status >= 300 {
		return problem(r.op, got)
	}
	at.id = got.from.id
	return nil
}

// refused is the error of an answer. A process that is not the one that was meant is met anew.
func (x *exchange) refused(got *answer) error {
	found := problem(x.ask.op, got)
	found.Unknown = found.Unknown && x.ask.changes()
	if found.Code == ErrOtherGateway && x.inDoubt {
		return x.lostTrack("the gateway that may have done it was restarted")
	}
	if x.key != "" && (found.Status == http.StatusNotFound || found.Status == http.StatusConflict) {
		// Whoever knows the key of a request that was carried out answers as the first time. What is refused before
		// the key is looked at, such as a token, says nothing.
		x.inDoubt = false
	}
	if found.Code == ErrGatewayStops {
		x.client.gateways.failed(got.from.base)
	}
	return found
}

func (x *exchange) lostTrack(why string) *Error {
	return &Error{Op: x.ask.op, Code: ErrOutcomeUnknown, Unknown: true,
		Message: why + ": look whether it was done before it is asked again"}
}

// mayRepeat says whether the request may be sent again after an error, and remembers what is in doubt.
func (x *exchange) mayRepeat(err error) bool {
	var unsent *notSent
	if errors.As(err, &unsent) {
		return !isCertificate(err)
	}
	var lost *lostAnswer
	if errors.As(err, &lost) {
		if x.ask.repeated == always || !x.ask.changes() {
			x.inDoubt = x.inDoubt || x.ask.changes()
			x.client.gateways.failed(lost.by.base)
			return true
		}
		if !x.inDoubt {
			x.inDoubt, x.suspect = true, lost.by
		}
		return lost.by.id != ""
	}
	found := asError(err)
	switch {
	case found == nil:
		return false
	case notBegun[found.Code] || found.Code == ErrOtherGateway:
		return true
	case x.ask.repeated == always || !x.ask.changes():
		x.inDoubt = x.inDoubt || found.Unknown
		return found.Retryable || found.Status == http.StatusBadGateway || found.Status == http.StatusGatewayTimeout
	default:
		return false
	}
}

// final is what the caller is told after the last attempt.
func (x *exchange) final(err error) error {
	found := asError(err)
	if found == nil {
		found = &Error{Op: x.ask.op, Code: ErrUnreachable, Message: "no gateway answered", cause: err}
		var lost *lostAnswer
		if errors.As(err, &lost) && x.ask.changes() {
			x.inDoubt = true
		}
	}
	if x.inDoubt {
		found.Unknown = true
		if found.Code == ErrUnreachable {
			found.Code = ErrOutcomeUnknown
			found.Message = "it may have been done, or not; look before it is asked again"
		}
	}
	return found
}

// ended is the error of a context that ended while the request was under way.
func (x *exchange) ended(ctx context.Context, err error) error {
	var lost *lostAnswer
	found := asError(err)
	if errors.As(err, &lost) || found != nil && found.Unknown {
		x.inDoubt = x.inDoubt || x.ask.changes()
	}
	message := "the context ended"
	if x.inDoubt {
		message = "the context ended before the answer came; it may have been done, or not"
	}
	code := ErrUnreachable
	if x.inDoubt {
		code = ErrOutcomeUnknown
	}
	return &Error{Op: x.ask.op, Code: code, Message: message, Unknown: x.inDoubt, cause: context.Cause(ctx)}
}

// redirection is the address of the gateway that a request is sent on to. It must be about the same as the request.
func redirection(r *request, got *answer) (string, error) {
	text := got.header.Get("Location")
	to, err := url.Parse(text)
	if err != nil || (to.Scheme != "http" && to.Scheme != "https") || to.Host == "" || to.User != nil {
		return "", badAnswer(r.op, fmt.Sprintf("%s sends the request on to %q, which is no address", got.from.base, text), nil)
	}
	if strings.HasPrefix(got.from.base, "https:") && to.Scheme != "https" {
		return "", badAnswer(r.op, fmt.Sprintf("%s sends the request on to %s, without TLS: refused", got.from.base, to.Host), nil)
	}
	base, found := strings.CutSuffix(to.Scheme+"://"+to.Host+to.EscapedPath(), r.path)
	if !found || to.RawQuery != r.query.Encode() {
		return "", badAnswer(r.op, fmt.Sprintf("%s sends the request on to another one, %q: refused", got.from.base, text), nil)
	}
	return base, nil
}

// beforeSending: the connection was never made, so nobody has seen the request.
func beforeSending(err error) bool {
	var network *net.OpError
	var record tls.RecordHeaderError
	return errors.As(err, &network) && network.Op == "dial" || errors.As(err, &record) || isCertificate(err)
}

// isCertificate: the other side is not trusted, which does not pass by itself.
func isCertificate(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate)
}

// bare is an error without the address that net/http puts before it.
func bare(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

func newKey() string {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic(err) // the system has no randomness; Go itself gives up from 1.24 on
	}
	return hex.EncodeToString(random[:])
}

// pauseBefore the next attempt: what the gateway says, or longer each time, and never the same for two clients.
func pauseBefore(attempt int, err error) time.Duration {
	step := min(time.Duration(float64(firstPause)*math.Pow(2, float64(min(attempt, 10)-1))), longestStep)
	pause := step/2 + mathrand.N(step/2+1)
	if found := asError(err); found != nil && found.RetryAfter > pause {
		pause = found.RetryAfter
	}
	return pause
}

func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
