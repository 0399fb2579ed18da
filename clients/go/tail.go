package buckram

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// DefaultCredit is what a gateway may send ahead of a caller that is busy with a record.
	DefaultCredit = 256 << 10
	leastCredit   = 4 << 10
	// outOfRangeAttempts take about two seconds.
	outOfRangeAttempts = 5
	// silence after which a tail's connection is taken for dead: three times a gateway's comment.
	defaultSilence = 45 * time.Second
)

// TailOptions say where a tail begins; nil means with what is appended from now on.
type TailOptions struct {
	// From is the first offset, where it is set; At makes it. A tail that goes on after a restart of its program
	// begins at the offset after the last record that it handled.
	From *int64
	// FromEarliest begins with the earliest record that is kept.
	FromEarliest bool
	// Credit is how many bytes the gateway may send ahead of the caller, about; 0 means DefaultCredit. A caller that
	// is slow makes the gateway wait, which costs neither of them memory.
	Credit int
	// Silence is how long nothing may come, not even the gateway's sign of life each 15 seconds, until the connection
	// is taken for dead; 0 means 45 seconds.
	Silence time.Duration
}

// Tail follows the stream: it gives each record once and in order, and waits for more. A connection that is lost, a
// gateway that stops or cuts off a slow caller is no end: the tail goes on where it was, at any gateway. It ends when
// the stream was ended and all of it was given, when the context ends, or with an error that will not pass, such as
// ErrNoSuchStream, or ErrOffsetOutOfRange for a begin beyond the end; the error is the last of what it gives. Records that were truncated before they were given are
// passed over.
func (s *Stream) Tail(ctx context.Context, options *TailOptions) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		t, err := s.beginTail(ctx, options)
		if err == nil {
			err = t.run(ctx, yield)
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(Record{}, err)
		}
	}
}

// errStopped: the caller takes no more.
var errStopped = errors.New("stopped")

type tail struct {
	stream  *Stream
	sender  *http.Client
	silence time.Duration
	credit  int
	// position is the next offset that is wanted.
	position int64
	failures int
}

func (s *Stream) beginTail(ctx context.Context, options *TailOptions) (*tail, error) {
	op := "follow stream " + s.String()
	if options == nil {
		options = &TailOptions{}
	}
	if options.From != nil && options.FromEarliest {
		return nil, badArgument(op, "From and FromEarliest exclude each other: give one of them")
	}
	if options.From != nil && *options.From < 0 || options.Silence < 0 || options.Credit < 0 {
		return nil, badArgument(op, "From, Silence and Credit need numbers from 0 on")
	}
	credit, silence := options.Credit, options.Silence
	if credit == 0 {
		credit = DefaultCredit
	}
	if silence == 0 {
		silence = defaultSilence
	}
	t := &tail{stream: s, sender: s.client.events(max(credit, leastCredit)), silence: silence, credit: credit}
	switch {
	case options.From != nil:
		t.position = *options.From
	case !options.FromEarliest:
		// As a number, so that records that come while a connection is lost are not missed.
		latest, err := s.Latest(ctx)
		if err != nil {
			return nil, err
		}
		t.position = latest
	}
	return t, nil
}

// run connects again and again. It returns nil at the end of the stream.
func (t *tail) run(ctx context.Context, yield func(Record, error) bool) error {
	op := "follow stream " + t.stream.String()
	for {
		err := t.connect(ctx, op, yield)
		if err == nil || errors.Is(err, errStopped) {
			return err
		}
		if ctx.Err() != nil {
			return &Error{Op: op, Code: ErrUnreachable, Message: "the context ended", cause: context.Cause(ctx)}
		}
		if !t.passes(err) {
			if asError(err) == nil {
				err = &Error{Op: op, Code: ErrUnreachable, Message: "the gateway cannot be followed", cause: err}
			}
			return err
		}
		t.failures++
		pause := pauseBefore(t.failures, err)
		t.stream.client.log.Info("a tail goes on", "stream", t.stream.String(), "offset", t.position, "pause", pause,
			"error", err)
		if !sleep(ctx, pause) {
			return &Error{Op: op, Code: ErrUnreachable, Message: "the context ended", cause: context.Cause(ctx)}
		}
	}
}

// connect follows at one gateway. The error says why it ended; nil: the stream was ended.
func (t *tail) connect(ctx context.Context, op string, yield func(Record, error) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(t.silence, func() {
		cancel(fmt.Errorf("nothing came for %v", t.silence))
	})
	defer watch.Stop()
	client := t.stream.client
	at := client.gateways.choose("")
	r := t.stream.request("follow stream", http.MethodGet, "tail")
	r.query = map[string][]string{"start": {strconv.FormatInt(t.position, 10)}}
	r.header = http.Header{"Accept": {mediaEvents}}
	built, err := client.build(ctx, r, at.base, "", "")
	if err != nil {
		return badArgument(op, err.Error())
	}
	got, err := t.sender.Do(built)
	if err != nil {
		client.gateways.failed(at.base)
		return lostBy(ctx, at, bare(err))
	}
	defer got.Body.Close()
	defer t.sender.CloseIdleConnections()
	if got.StatusCode != http.StatusOK {
		whole, err := readAnswer(got, at)
		if err != nil {
			return lostBy(ctx, at, err)
		}
		found := problem(op, whole)
		if found.Code == ErrGatewayStops || found.Code == ErrTooManyTails {
			client.gateways.failed(at.base)
		}
		return found
	}
	if media, _, _ := strings.Cut(got.Header.Get("Content-Type"), ";"); media != mediaEvents {
		return badAnswer(op, fmt.Sprintf("%s answered with %q instead of events", at.base, media), nil)
	}
	err = t.follow(got.Body, op, watch, yield)
	if err != nil && asError(err) == nil && !errors.Is(err, errStopped) {
		client.gateways.failed(at.base)
		return lostBy(ctx, at, err)
	}
	return err
}

// follow gives the records of one connection.
func (t *tail) follow(body io.Reader, op string, watch *time.Timer, yield func(Record, error) bool) error {
	source := &events{bufio.NewReaderSize(&watched{body, watch, t.silence}, min(max(t.credit, leastCredit), 64<<10))}
	for {
		found, err := source.next()
		if err != nil {
			return err
		}
		switch found.name {
		case "end":
			return nil
		case "error":
			return t.problem(op, found.data)
		case "", "message":
		default:
			continue
		}
		record, err := parseRecord(found.data)
		if err != nil {
			return badAnswer(op, "an event is not what a gateway sends", err)
		}
		if record.Offset < t.position {
			continue // it was given before the connection was lost
		}
		t.position, t.failures = record.Offset+1, 0
		// While the caller is busy nothing is read, which is no silence of the gateway.
		watch.Stop()
		if !yield(record, nil) {
			return errStopped
		}
		watch.Reset(t.silence)
	}
}

// problem is the error that a gateway ends a tail with.
func (t *tail) problem(op string, data []byte) *Error {
	found := problem(op, &answer{status: http.StatusOK, header: http.Header{}, body: data})
	found.Status = 0
	return found
}

// passes says whether a tail goes on after an error.
func (t *tail) passes(err error) bool {
	found := asError(err)
	if found == nil {
		return !isCertificate(err)
	}
	switch found.Code {
	case "HANDLE_CLOSED", ErrGatewayStops, ErrTooManyTails, ErrGatewayFull, ErrTooManyConnections:
		return true
	case ErrOffsetOutOfRange:
		// What one gateway has read another one may see some milliseconds later.
		return t.failures < outOfRangeAttempts
	}
	return found.Retryable || found.Status == http.StatusBadGateway || found.Status == http.StatusGatewayTimeout
}

func lostBy(ctx context.Context, at process, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &lostAnswer{at, err}
}

// watched pushes the end of patience back with whatever comes.
type watched struct {
	from    io.Reader
	watch   *time.Timer
	silence time.Duration
}

func (w *watched) Read(into []byte) (int, error) {
	n, err := w.from.Read(into)
	if n > 0 {
		w.watch.Reset(w.silence)
	}
	return n, err
}
