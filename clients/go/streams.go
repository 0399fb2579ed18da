package buckram

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// Stream is a stream by its name; it need not exist. From Client.Stream.
type Stream struct {
	client          *Client
	namespace, name string
}

// Stream names a stream of a namespace. Nothing is sent.
func (c *Client) Stream(namespace, name string) *Stream { return &Stream{c, namespace, name} }

// String returns NAMESPACE/STREAM.
func (s *Stream) String() string { return s.namespace + "/" + s.name }

// StreamInfo is what is known of a stream.
type StreamInfo struct {
	// Stream is NAMESPACE/STREAM.
	Stream string `json:"stream"`
	UID    string `json:"uid"`
	// Earliest is the offset of the oldest record that is kept, End the one after the newest.
	Earliest int64 `json:"earliest"`
	End      int64 `json:"end"`
	Records  int64 `json:"records"`
	// Ended: it takes no more records, ever.
	Ended      bool              `json:"ended"`
	Segments   int64             `json:"segments"`
	CreatedUS  int64             `json:"created_us"`
	Policy     map[string]any    `json:"policy"`
	Overrides  map[string]any    `json:"overrides"`
	Properties map[string]string `json:"properties"`
}

// StreamOptions are settings of a new stream. Both may be nil.
type StreamOptions struct {
	// Policy overrides that of the namespace, such as {"retention_s": 86400}.
	Policy     map[string]any    `json:"policy,omitempty"`
	Properties map[string]string `json:"properties,omitempty"`
}

// Create makes an empty stream. ErrStreamExists, ErrNoSuchNamespace.
func (s *Stream) Create(ctx context.Context, options *StreamOptions) (StreamInfo, error) {
	asked := struct {
		Stream string `json:"stream"`
		*StreamOptions
	}{s.name, options}
	var found StreamInfo
	r := s.request("create stream", http.MethodPost)
	r.path = pathOf("namespaces", s.namespace, "streams")
	_, err := s.client.ask(ctx, r, asked, &found)
	return found, err
}

// Info describes the stream. ErrNoSuchStream.
func (s *Stream) Info(ctx context.Context) (StreamInfo, error) {
	var found StreamInfo
	_, err := s.client.ask(ctx, s.request("show stream", http.MethodGet), nil, &found)
	return found, err
}

// Set changes policy and properties; nil as a value of the policy takes one back.
func (s *Stream) Set(ctx context.Context, options StreamOptions) (StreamInfo, error) {
	var found StreamInfo
	r := s.request("set stream", http.MethodPatch)
	r.repeated = always
	_, err := s.client.ask(ctx, r, options, &found)
	return found, err
}

// Truncate drops the records below an offset, and returns the earliest one that is kept.
func (s *Stream) Truncate(ctx context.Context, before int64) (int64, error) {
	var found struct {
		Earliest int64 `json:"earliest"`
	}
	r := s.request("truncate stream", http.MethodPost, "truncate")
	r.repeated = always
	_, err := s.client.ask(ctx, r, map[string]int64{"before": before}, &found)
	return found.Earliest, err
}

// End marks the end of the stream, which takes no more records, and returns the offset after its last one.
func (s *Stream) End(ctx context.Context) (int64, error) {
	var found struct {
		End int64 `json:"end"`
	}
	r := s.request("end stream", http.MethodPost, "end")
	r.route = s.String()
	_, err := s.client.ask(ctx, r, nil, &found)
	return found.End, err
}

// Delete deletes the stream with its records and cursors. ErrNoSuchStream.
func (s *Stream) Delete(ctx context.Context) error {
	_, err := s.client.ask(ctx, s.request("delete stream", http.MethodDelete), nil, nil)
	return err
}

// Cursor is a durable, named position of a reader.
type Cursor struct {
	Name   string `json:"cursor"`
	Offset int64  `json:"offset"`
	// Lag is how many records follow.
	Lag       int64 `json:"lag"`
	ChangedUS int64 `json:"changed_us"`
}

// Cursors gives the cursors of the stream by their names.
func (s *Stream) Cursors(ctx context.Context) iter.Seq2[Cursor, error] {
	return paged(func(after string) ([]Cursor, *string, error) {
		var found struct {
			Cursors []Cursor `json:"cursors"`
			Next    *string  `json:"next"`
		}
		r := s.request("list the cursors of stream", http.MethodGet, "cursors")
		r.query = pageQuery("", after)
		_, err := s.client.ask(ctx, r, nil, &found)
		return found.Cursors, found.Next, err
	})
}

// Cursor finds one cursor. ErrNoSuchCursor.
func (s *Stream) Cursor(ctx context.Context, name string) (Cursor, error) {
	for one, err := range s.Cursors(ctx) {
		if err != nil || one.Name == name {
			return one, err
		}
	}
	return Cursor{}, &Error{Op: fmt.Sprintf("show cursor %s of stream %s", name, s), Code: ErrNoSuchCursor,
		Status: http.StatusNotFound, Message: "there is none: MoveCursor makes it"}
}

// MoveCursor creates a cursor at an offset, or moves it up to there. ErrCursorMoved: it is further up already.
func (s *Stream) MoveCursor(ctx context.Context, name string, offset int64) error {
	r := s.request("move cursor "+name+" of stream", http.MethodPut, "cursors", name)
	r.repeated = always
	_, err := s.client.ask(ctx, r, map[string]int64{"offset": offset}, nil)
	return err
}

// DeleteCursor deletes a cursor. ErrNoSuchCursor.
func (s *Stream) DeleteCursor(ctx context.Context, name string) error {
	r := s.request("delete cursor "+name+" of stream", http.MethodDelete, "cursors", name)
	_, err := s.client.ask(ctx, r, nil, nil)
	return err
}

// Streams gives the names of a namespace's streams that begin with prefix, in order.
func (c *Client) Streams(ctx context.Context, namespace, prefix string) iter.Seq2[string, error] {
	return paged(func(after string) ([]string, *string, error) {
		var found struct {
			Streams []string `json:"streams"`
			Next    *string  `json:"next"`
		}
		r := &request{op: "list the streams of namespace " + namespace, method: http.MethodGet,
			path: pathOf("namespaces", namespace, "streams"), query: pageQuery(prefix, after)}
		_, err := c.ask(ctx, r, nil, &found)
		return found.Streams, found.Next, err
	})
}

func (s *Stream) request(what, method string, more ...string) *request {
	parts := append([]string{"namespaces", s.namespace, "streams", s.name}, more...)
	return &request{op: what + " " + s.String(), method: method, path: pathOf(parts...)}
}

const pageSize = 1000

func pageQuery(prefix, after string) url.Values {
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	if prefix != "" {
		query.Set("prefix", prefix)
	}
	if after != "" {
		query.Set("after", after)
	}
	return query
}

// paged gives the rows of pages one after another; the error is the last of what it gives.
func paged[Row any](page func(after string) ([]Row, *string, error)) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		after := ""
		for {
			rows, next, err := page(after)
			if err != nil {
				var none Row
				yield(none, err)
				return
			}
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
			if next == nil || *next == after {
				return
			}
			after = *next
		}
	}
}
