package buckram

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// tailOf sends events of these offsets, and `more`.
func tailOf(more string, offsets ...int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", mediaEvents)
		io.WriteString(w, "retry: 2000\n\n")
		for _, offset := range offsets {
			fmt.Fprintf(w, "id: %d\ndata: %s\n\n", offset, recordLine(offset))
		}
		io.WriteString(w, more)
		w.(http.Flusher).Flush()
	}
}

const ended = "event: end\ndata: {}\n\n"

func follow(t *testing.T, gateway *fake, options *TailOptions) (offsets []int64, failed error) {
	t.Helper()
	for record, err := range opened(t, gateway.URL).Stream("shop", "orders").Tail(within(t, 60*time.Second), options) {
		if err != nil {
			failed = err
			continue
		}
		offsets = append(offsets, record.Offset)
	}
	return offsets, failed
}

func TestATailGoesOnWhereItWas(t *testing.T) {
	gateway := newFake(t, "a",
		tailOf("id: 2\ndata: {\"off", 0, 1), // the connection is lost within an event
		refuse(503, ErrTooManyTails, ""),
		tailOf("event: error\ndata: {\"code\":\"HANDLE_CLOSED\",\"message\":\"stops\",\"retryable\":false}\n\n", 1, 2),
		cut,
		tailOf(ended, 3, 9))
	got, err := follow(t, gateway, &TailOptions{FromEarliest: true})
	if err != nil || !reflect.DeepEqual(got, []int64{0, 1, 2, 3, 9}) {
		t.Fatal(got, err)
	}
	var asked []string
	for _, one := range gateway.requests() {
		asked = append(asked, one.query)
	}
	if !reflect.DeepEqual(asked, []string{"start=0", "start=2", "start=2", "start=3", "start=3"}) {
		t.Error(asked)
	}
}

func TestATailOfWhatComesDoesNotMissWhatComesWhileItIsAway(t *testing.T) {
	gateway := newFake(t, "a", pageOf(41), tailOf(""), tailOf(ended, 41))
	got, err := follow(t, gateway, nil)
	if err != nil || !reflect.DeepEqual(got, []int64{41}) {
		t.Fatal(got, err)
	}
	sent := gateway.requests()
	if sent[0].query != "limit=1&start=latest" || sent[1].query != "start=41" || sent[2].query != "start=41" {
		t.Error(sent)
	}
}

func TestATailEndsWithWhatDoesNotPass(t *testing.T) {
	for _, one := range []struct {
		step http.HandlerFunc
		code Code
	}{
		{refuse(404, ErrNoSuchStream, ""), ErrNoSuchStream},
		{refuse(401, ErrUnauthorized, ""), ErrUnauthorized},
		{refuse(410, ErrOffsetTruncated, ""), ErrOffsetTruncated},
		{tailOf("event: error\ndata: {\"code\":\"UNAUTHORIZED\",\"message\":\"revoked\",\"retryable\":false}\n\n", 3), ErrUnauthorized},
		{tailOf("id: 3\ndata: no JSON\n\n"), ErrBadAnswer},
		{with("Content-Type", "text/html", say("<html>")), ErrBadAnswer},
	} {
		gateway := newFake(t, "a", one.step)
		if _, err := follow(t, gateway, &TailOptions{From: At(3)}); !errors.Is(err, one.code) || len(gateway.requests()) != 1 {
			t.Error(one.code, err)
		}
	}
	for _, bad := range []*TailOptions{{From: At(-1)}, {From: At(1), FromEarliest: true}, {Credit: -1}, {Silence: -1}} {
		if _, err := follow(t, newFake(t, "a", cut), bad); !errors.Is(err, ErrInvalidArgument) {
			t.Error(err)
		}
	}
}

func TestATailWaitsForWhatAnotherGatewayHasReadAlready(t *testing.T) {
	beyond := refuse(416, ErrOffsetOutOfRange, "")
	gateway := newFake(t, "a", tailOf("", 0), beyond, beyond, tailOf(ended, 1))
	if got, err := follow(t, gateway, &TailOptions{From: At(0)}); err != nil || !reflect.DeepEqual(got, []int64{0, 1}) {
		t.Fatal(got, err)
	}
	gateway = newFake(t, "a", beyond)
	_, err := follow(t, gateway, &TailOptions{From: At(99)})
	if !errors.Is(err, ErrOffsetOutOfRange) || len(gateway.requests()) != outOfRangeAttempts+1 {
		t.Error(err, len(gateway.requests()))
	}
}

func TestATailEndsWithItsContextAndItsCaller(t *testing.T) {
	gateway := newFake(t, "a", func(w http.ResponseWriter, r *http.Request) {
		tailOf("", 0)(w, r)
		<-r.Context().Done()
	})
	orders := opened(t, gateway.URL).Stream("shop", "orders")
	ctx, cancel := context.WithCancel(within(t, 60*time.Second))
	defer cancel()
	var last error
	for _, err := range orders.Tail(ctx, &TailOptions{From: At(0)}) {
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) {
		t.Error(last)
	}
	for range orders.Tail(within(t, 60*time.Second), &TailOptions{From: At(0)}) {
		break
	}
}

func TestASilentConnectionIsTakenForDead(t *testing.T) {
	gateway := newFake(t, "a", func(w http.ResponseWriter, r *http.Request) {
		tailOf("", 0)(w, r)
		<-r.Context().Done()
	}, hang, tailOf(ended, 1))
	got, err := follow(t, gateway, &TailOptions{From: At(0), Silence: 100 * time.Millisecond})
	if err != nil || !reflect.DeepEqual(got, []int64{0, 1}) {
		t.Fatal(got, err)
	}
}

// The gateway sends without end; a caller that is busy with the first record makes it stop.
func TestTheCreditOfATailIsHeldTo(t *testing.T) {
	const credit, record = 16 << 10, 4 << 10
	text := strings.Repeat("eHh4", record/4)
	stuck := make(chan int, 1)
	gateway := newFake(t, "a", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", mediaEvents)
		control := http.NewResponseController(w)
		for offset := 0; ; offset++ {
			control.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
			_, err := fmt.Fprintf(w, "id: %d\ndata: {\"offset\":%d,\"timestamp_us\":0,\"append_time_us\":0,\"value_base64\":%q}\n\n", offset, offset, text)
			if err == nil {
				err = control.Flush()
			}
			if err != nil {
				stuck <- offset * record
				return
			}
			if offset > 10_000 {
				stuck <- -1
				return
			}
		}
	})
	for _, err := range opened(t, gateway.URL).Stream("a", "b").Tail(within(t, 60*time.Second), &TailOptions{From: At(0), Credit: credit}) {
		if err != nil {
			t.Fatal(err)
		}
		// What the sender's own socket takes is the sender's: Linux lets it grow to 4 MiB.
		if sent := <-stuck; sent < 0 || sent > 6<<20 {
			t.Error("the gateway could send", sent, "bytes ahead")
		}
		break
	}
}
