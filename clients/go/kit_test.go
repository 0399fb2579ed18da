package buckram

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// seen is one request as a gateway saw it.
type seen struct {
	method, path, query, body string
	header                    http.Header
}

// fake answers as a gateway does, by a script: each request takes the next step, and the last step stays.
type fake struct {
	*httptest.Server
	id    string
	mu    sync.Mutex
	seen  []seen
	steps []http.HandlerFunc
}

func newFake(t *testing.T, id string, steps ...http.HandlerFunc) *fake {
	t.Helper()
	f := &fake{id: id, steps: steps}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	if f.id != "" {
		w.Header().Set(gatewayHeader, f.id)
	}
	if r.URL.Path == "/health" {
		io.WriteString(w, `{"status":"ok"}`)
		return
	}
	if meant := r.Header.Get(gatewayHeader); meant != "" && meant != f.id {
		refuse(421, ErrOtherGateway, "")(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.seen = append(f.seen, seen{r.Method, r.URL.Path, r.URL.RawQuery, string(body), r.Header})
	step := f.steps[0]
	if len(f.steps) > 1 {
		f.steps = f.steps[1:]
	}
	f.mu.Unlock()
	step(w, r)
}

func (f *fake) requests() []seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]seen(nil), f.seen...)
}

func say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, text) }
}

func refuse(status int, code Code, more string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", mediaJSON)
		w.WriteHeader(status)
		io.WriteString(w, `{"code":"`+string(code)+`","message":"no"`+more+`}`)
	}
}

func with(name, value string, step http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(name, value)
		step(w, r)
	}
}

// cut ends the connection instead of an answer.
func cut(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }

// hang answers nothing until its client leaves.
func hang(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

const appendedOne = `{"stream":"shop/orders","records":1,"first_offset":7,"last_offset":7}`

func opened(t *testing.T, addresses string, options ...Option) *Client {
	t.Helper()
	for _, name := range []string{EnvToken, EnvTokenFile, EnvCA, EnvGateway} {
		t.Setenv(name, "")
	}
	client, err := Open(addresses, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func value(text string) []Record { return []Record{{Value: []byte(text)}} }
