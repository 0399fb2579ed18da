package buckram

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ObjectReader reads the bytes of one version of an object. A connection that is lost is no end: it goes on where it
// was, at any gateway. Close it. It is for one goroutine at a time.
type ObjectReader struct {
	// Info is what is known of the object.
	Info ObjectInfo

	objects  *Objects
	ctx      context.Context
	position int64
	stop     int64
	body     io.ReadCloser
	watch    *time.Timer
	cancel   context.CancelFunc
	at       process
	failures int
	err      error
}

// Get opens an object for reading, or a part of it. ErrNoSuchObject, ErrRangeOutside for a start that is not in it. The
// context counts until Close.
func (o *Objects) Get(ctx context.Context, name string, options *GetOptions) (*ObjectReader, error) {
	if options == nil {
		options = &GetOptions{}
	}
	r := &ObjectReader{Info: ObjectInfo{Name: name, Version: options.Version}, objects: o, ctx: ctx,
		position: options.Start, stop: -1}
	if options.Start < 0 || options.Length < 0 || options.Version < 0 {
		return nil, badArgument(r.op(), "Start, Length and Version need numbers from 0 on")
	}
	if options.Length > 0 {
		r.stop = options.Start + options.Length
	}
	if err := r.again(nil); err != nil {
		return nil, err
	}
	return r, nil
}

// Read reads the next bytes; io.EOF after the last one.
func (r *ObjectReader) Read(into []byte) (int, error) {
	for {
		if r.err != nil {
			return 0, r.err
		}
		if r.position >= r.stop {
			r.err = io.EOF
			continue
		}
		r.watch.Reset(r.objects.client.timeout)
		n, err := r.body.Read(into[:min(int64(len(into)), r.stop-r.position)])
		r.watch.Stop()
		if n > 0 {
			r.position += int64(n)
			r.failures = 0
			return n, nil
		}
		if err == nil {
			return 0, nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if cause := context.Cause(r.ctx); cause != nil {
			err = cause
		}
		r.objects.client.gateways.failed(r.at.base)
		r.err = r.again(&lostAnswer{r.at, err})
	}
}

// Close ends reading. Idempotent.
func (r *ObjectReader) Close() error {
	r.letGo()
	if r.err == nil {
		r.err = &Error{Op: r.op(), Code: ErrInvalidArgument, Message: "it was closed: get the object again"}
	}
	return nil
}

func (r *ObjectReader) op() string { return "get object " + r.objects.namespace + "/" + r.Info.Name }

func (r *ObjectReader) letGo() {
	if r.body != nil {
		r.cancel()
		r.body.Close()
		r.body = nil
	}
}

// again opens the object where it was read to. lost: why the connection before ended; nil for the first one.
func (r *ObjectReader) again(lost error) error {
	client, first := r.objects.client, lost == nil
	for {
		r.letGo()
		if lost != nil {
			r.failures++
			if r.ctx.Err() != nil {
				return &Error{Op: r.op(), Code: ErrUnreachable, Message: "the context ended", cause: context.Cause(r.ctx)}
			}
			if r.failures >= client.attempts || !r.passes(lost) {
				if found := asError(lost); found != nil {
					return found
				}
				return &Error{Op: r.op(), Code: ErrUnreachable, Message: "no gateway answered", cause: lost}
			}
			pause := pauseBefore(r.failures, lost)
			client.log.Info("an object is read on", "object", r.Info.Name, "byte", r.position, "pause", pause, "error", lost)
			if !sleep(r.ctx, pause) {
				return &Error{Op: r.op(), Code: ErrUnreachable, Message: "the context ended", cause: context.Cause(r.ctx)}
			}
		}
		if lost = r.open(first); lost == nil {
			return nil
		}
	}
}

func (r *ObjectReader) passes(err error) bool {
	found := asError(err)
	if found == nil {
		return !isCertificate(err)
	}
	return found.Retryable || notBegun[found.Code] || found.Status == http.StatusBadGateway ||
		found.Status == http.StatusGatewayTimeout
}

// open sends the request once. The first answer says which version it is.
func (r *ObjectReader) open(first bool) error {
	client := r.objects.client
	ask := r.objects.object("get object", http.MethodGet, r.Info.Name)
	if r.Info.Version != 0 {
		ask.header.Set("If-Match", tagOf(r.Info.Version))
	}
	if wanted := r.rangeHeader(); wanted != "" {
		ask.header.Set("Range", wanted)
	}
	ctx, watch, cancel := patient(r.ctx, client.timeout)
	at := client.gateways.choose("")
	built, err := client.build(ctx, ask, at.base, "", "")
	if err != nil {
		cancel()
		return badArgument(r.op(), err.Error())
	}
	got, err := client.http.Do(built)
	if err != nil {
		err = lostBy(ctx, at, bare(err))
		cancel()
		client.gateways.failed(at.base)
		return err
	}
	watch.Stop()
	if got.StatusCode != http.StatusOK && got.StatusCode != http.StatusPartialContent {
		whole, err := readAnswer(got, at)
		cancel()
		if err != nil {
			return &lostAnswer{at, err}
		}
		return problem(r.op(), whole)
	}
	r.body, r.watch, r.cancel, r.at = got.Body, watch, cancel, at
	if err := r.begin(got, first); err != nil {
		r.letGo()
		return badAnswer(r.op(), fmt.Sprintf("what %s answered is not what a gateway answers", at.base), err)
	}
	return nil
}

func (r *ObjectReader) rangeHeader() string {
	switch {
	case r.stop >= 0:
		return fmt.Sprintf("bytes=%d-%d", r.position, r.stop-1)
	case r.position > 0:
		return fmt.Sprintf("bytes=%d-", r.position)
	default:
		return ""
	}
}

// begin compares an answer with what was asked for.
func (r *ObjectReader) begin(got *http.Response, first bool) error {
	start, size := int64(0), got.Header.Get("Content-Length")
	if got.StatusCode == http.StatusPartialContent {
		var span string
		span, size, _ = strings.Cut(strings.TrimPrefix(got.Header.Get("Content-Range"), "bytes "), "/")
		from, _, _ := strings.Cut(span, "-")
		var err error
		if start, err = strconv.ParseInt(from, 10, 64); err != nil {
			return fmt.Errorf("the Content-Range %q is none", got.Header.Get("Content-Range"))
		}
	}
	found, err := infoOf(r.Info.Name, got.Header, size)
	if err != nil {
		return err
	}
	if start != r.position || r.Info.Version != 0 && found.Version != r.Info.Version {
		return fmt.Errorf("version %d from byte %d on was sent, and version %d from byte %d on was asked for",
			found.Version, start, r.Info.Version, r.position)
	}
	if first {
		r.Info = found
		if r.stop < 0 || r.stop > found.Size {
			r.stop = found.Size
		}
	}
	return nil
}
