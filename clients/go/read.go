package buckram

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ReadOptions say which records are read; nil means all that can be read now.
type ReadOptions struct {
	// From is the first offset; nil means the earliest record that is kept. At makes one.
	From *int64
	// Since begins with the first record that was appended then or later.
	Since time.Time
	// Stop is the offset to end before; 0: what can be read now.
	Stop int64
	// Until ends before records that were appended then or later.
	Until time.Time
	// Limit is how many records a page has at most; 0 means 1000, the most is 10,000. It does not limit Records.
	Limit int
}

// Page is some records of a stream.
type Page struct {
	Records []Record
	// Next is the offset at which the next page begins.
	Next int64
}

// Read reads one page: Limit records or 8 MiB, or fewer where the stream ends. ErrOffsetOutOfRange beyond the end,
// ErrOffsetTruncated for records that are gone; both have the details "earliest" and perhaps "latest".
func (s *Stream) Read(ctx context.Context, options *ReadOptions) (Page, error) {
	r := s.request("read stream", http.MethodGet, "records")
	query, err := options.query()
	if err != nil {
		return Page{}, badArgument(r.op, err.Error())
	}
	return s.page(ctx, r, query)
}

// Records gives records page after page, up to the end of the stream as it is when it gets there, or Stop, or Until.
// The error is the last of what it gives.
func (s *Stream) Records(ctx context.Context, options *ReadOptions) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		r := s.request("read stream", http.MethodGet, "records")
		query, err := options.query()
		if err != nil {
			yield(Record{}, badArgument(r.op, err.Error()))
			return
		}
		position := int64(-1)
		for {
			page, err := s.page(ctx, r, query)
			if err != nil {
				yield(Record{}, err)
				return
			}
			for _, record := range page.Records {
				if !yield(record, nil) {
					return
				}
			}
			if len(page.Records) == 0 && (position < 0 || page.Next <= position) || options.reached(page.Next) {
				return
			}
			position = page.Next
			query.Del("since")
			query.Set("start", strconv.FormatInt(position, 10))
		}
	}
}

// Get reads one record by its offset.
func (s *Stream) Get(ctx context.Context, offset int64) (Record, error) {
	r := s.request(fmt.Sprintf("read record %d of stream", offset), http.MethodGet, "records",
		strconv.FormatInt(offset, 10))
	got, err := s.client.call(ctx, r)
	if err != nil {
		return Record{}, err
	}
	found, err := parseRecord(got.body)
	if err != nil {
		return Record{}, s.client.unreadable(r, got, err)
	}
	return found, nil
}

// Latest is the offset that the next record gets, as far as it can be read now.
func (s *Stream) Latest(ctx context.Context) (int64, error) {
	query := url.Values{"start": {"latest"}, "limit": {"1"}}
	page, err := s.page(ctx, s.request("read the end of stream", http.MethodGet, "records"), query)
	return page.Next - int64(len(page.Records)), err
}

func (s *Stream) page(ctx context.Context, r *request, query url.Values) (Page, error) {
	r.query, r.header = query, http.Header{"Accept": {mediaLines}}
	got, err := s.client.call(ctx, r)
	if err != nil {
		return Page{}, err
	}
	var page Page
	err = lines(got.body, func(line []byte) error {
		record, err := parseRecord(line)
		page.Records = append(page.Records, record)
		return err
	})
	if err == nil {
		page.Next, err = strconv.ParseInt(got.header.Get("Buckram-Next-Offset"), 10, 64)
	}
	if err != nil {
		return Page{}, s.client.unreadable(r, got, err)
	}
	return page, nil
}

func (o *ReadOptions) query() (url.Values, error) {
	query := url.Values{}
	if o == nil {
		return query, nil
	}
	if o.From != nil && !o.Since.IsZero() {
		return nil, errors.New("From and Since exclude each other: give one of them")
	}
	if o.From != nil {
		query.Set("start", strconv.FormatInt(*o.From, 10))
	}
	if !o.Since.IsZero() {
		query.Set("since", strconv.FormatInt(o.Since.UnixMicro(), 10))
	}
	if o.Stop != 0 {
		query.Set("stop", strconv.FormatInt(o.Stop, 10))
	}
	if !o.Until.IsZero() {
		query.Set("until", strconv.FormatInt(o.Until.UnixMicro(), 10))
	}
	if o.Limit != 0 {
		query.Set("limit", strconv.Itoa(o.Limit))
	}
	return query, nil
}

func (o *ReadOptions) reached(next int64) bool { return o != nil && o.Stop != 0 && next >= o.Stop }
