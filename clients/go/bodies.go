package buckram

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// source is the body of a request that is not in memory as a whole. It is sent again only if it can go back.
type source struct {
	from  io.Reader
	start int64
	// size is -1 where nobody knows it.
	size  int64
	begun bool
	// sent is closed when nobody reads it any more, which may be after an answer.
	sent chan struct{}
	// failed is the error of the caller's reader.
	failed error
}

// newSource takes what is left of a reader. With an io.Seeker its size is known, and it can go back.
func newSource(from io.Reader) (*source, error) {
	if from == nil {
		return &source{from: http.NoBody}, nil
	}
	s := &source{from: from, size: -1}
	if seeker, ok := from.(io.Seeker); ok {
		start, err := seeker.Seek(0, io.SeekCurrent)
		if err != nil {
			return s, nil // such as a pipe, whose file has the method all the same
		}
		end, err := seeker.Seek(0, io.SeekEnd)
		if err == nil {
			_, err = seeker.Seek(start, io.SeekStart)
		}
		if err != nil {
			return nil, fmt.Errorf("the bytes cannot be read: %w", err)
		}
		s.start, s.size = start, max(end-start, 0)
	}
	return s, nil
}

// mayGoBack says whether the next attempt would send the same bytes.
func (s *source) mayGoBack() bool { return !s.begun || s.size >= 0 && s.settled() }

// settled says whether nobody reads it any more.
func (s *source) settled() bool {
	select {
	case <-s.sent:
		return true
	default:
		return s.size == 0
	}
}

// wait until nobody reads it any more, or the context ends.
func (s *source) wait(ctx context.Context) {
	if s.size != 0 {
		select {
		case <-s.sent:
		case <-ctx.Done():
		}
	}
}

// rewind goes to the first byte.
func (s *source) rewind() error {
	if seeker, ok := s.from.(io.Seeker); ok && s.begun && s.size >= 0 {
		if _, err := seeker.Seek(s.start, io.SeekStart); err != nil {
			return fmt.Errorf("the bytes cannot be read again: %w", err)
		}
	}
	s.begun = true
	return nil
}

// Read reads what is sent. What goes wrong here is the caller's, and not the gateway's.
func (s *source) Read(into []byte) (int, error) {
	n, err := s.from.Read(into)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}

// attach makes it the body of a request. Each piece that is taken pushes the end of patience back. It goes through a
// pipe, because net/http waits for a body that it reads, whatever its context says, and a reader may stand still.
func (s *source) attach(built *http.Request, watch *time.Timer, patience time.Duration) error {
	if err := s.rewind(); err != nil {
		return err
	}
	if s.size == 0 {
		built.Body, built.ContentLength = http.NoBody, 0
		return nil
	}
	out, in := io.Pipe()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, err := io.Copy(in, &watched{s, watch, patience})
		in.CloseWithError(err)
	}()
	ctx := built.Context()
	context.AfterFunc(ctx, func() { out.CloseWithError(context.Cause(ctx)) })
	s.sent = sent
	built.Body, built.ContentLength = out, s.size
	return nil
}

// patient is a context that ends when its timer was not reset for so long.
func patient(ctx context.Context, limit time.Duration) (context.Context, *time.Timer, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	watch := time.AfterFunc(limit, func() { cancel(fmt.Errorf("nothing went on for %v", limit)) })
	return ctx, watch, func() {
		watch.Stop()
		cancel(nil)
	}
}
