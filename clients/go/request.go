package buckram

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

const (
	mediaJSON   = "application/json"
	mediaLines  = "application/x-ndjson"
	mediaValues = "application/vnd.buckram.values"
	mediaEvents = "text/event-stream"
	mediaBytes  = "application/octet-stream"

	keyHeader     = "Idempotency-Key"
	gatewayHeader = "Buckram-Gateway"
	outcomeHeader = "Buckram-Outcome"

	// mostAnswerBytes is above what a gateway sends: a page has 8 MiB of payload, or one record.
	mostAnswerBytes = 128 << 20
)

// repetition says when a request may be sent again although it may have been carried out.
type repetition int

const (
	// byKey: to the same process of a gateway, which knows the request's key.
	byKey repetition = iota
	// always: twice does the same as once.
	always
)

// request is what is asked of a gateway.
type request struct {
	op     string
	method string
	path   string
	query  url.Values
	header http.Header
	media  string
	body   []byte
	// source is the body instead of `body`, where it is not in memory.
	source   *source
	route    string
	repeated repetition
}

func (r *request) changes() bool { return r.method != http.MethodGet && r.method != http.MethodHead }

// answer is a whole answer of a gateway.
type answer struct {
	status int
	header http.Header
	body   []byte
	from   process
}

// pathOf makes a path of parts that may have any characters.
func pathOf(parts ...string) string {
	path := "/v2"
	for _, part := range parts {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// build makes the HTTP request for one gateway. With a key it is for the process with this id alone.
func (c *Client) build(ctx context.Context, r *request, base, key, id string) (*http.Request, error) {
	target := base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	built, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	for name, values := range r.header {
		built.Header[name] = values
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		built.Header.Set("Authorization", "Bearer "+token)
	}
	if r.media != "" {
		built.Header.Set("Content-Type", r.media)
	}
	if key != "" {
		// Not in the usual case: net/http would take the request for one that it may send again by itself after the
		// connection broke, and what comes back then does not say that there was a first time.
		built.Header[strings.ToLower(keyHeader)] = []string{key}
		built.Header.Set(gatewayHeader, id)
	}
	return built, nil
}

// readAnswer reads an answer to its end.
func readAnswer(got *http.Response, from process) (*answer, error) {
	defer got.Body.Close()
	body, err := io.ReadAll(io.LimitReader(got.Body, mostAnswerBytes+1))
	if err != nil {
		return nil, err
	}
	if len(body) > mostAnswerBytes {
		return nil, fmt.Errorf("the answer has more than %d bytes: ask for fewer records", mostAnswerBytes)
	}
	return &answer{got.StatusCode, got.Header, body, from}, nil
}

// decodeJSON reads one JSON value, with whole numbers as they are.
func decodeJSON(text []byte, into any) error {
	reader := json.NewDecoder(bytes.NewReader(text))
	reader.UseNumber()
	if err := reader.Decode(into); err != nil {
		return err
	}
	if _, err := reader.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows the JSON value")
	}
	return nil
}

// ask sends a request with an optional JSON body, and reads a JSON answer.
func (c *Client) ask(ctx context.Context, r *request, body any, into any) (process, error) {
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return process{}, badArgument(r.op, err.Error())
		}
		r.media, r.body = mediaJSON, text
	}
	got, err := c.call(ctx, r)
	if err != nil {
		return process{}, err
	}
	if into != nil {
		if err := decodeJSON(got.body, into); err != nil {
			return process{}, c.unreadable(r, got, err)
		}
	}
	return got.from, nil
}

// unreadable is the error of an answer that is not what a gateway answers. What it was about may have been done.
func (c *Client) unreadable(r *request, got *answer, err error) *Error {
	found := badAnswer(r.op, fmt.Sprintf("what %s answered is not what a gateway answers", got.from.base), err)
	found.Status, found.Unknown = got.status, r.changes()
	return found
}
