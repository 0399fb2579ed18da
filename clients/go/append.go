package buckram

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// Appended says where records went.
type Appended struct {
	// Records is how many were written: fewer than were sent where a producer had sent some before.
	Records int
	// First and Last are the offsets of those that were written; -1 where none was.
	First, Last int64
}

// AppendOptions of one append; nil means none of them.
type AppendOptions struct {
	// ExpectOffset: append only if this is the next offset; ErrOffsetMismatch otherwise. nil: wherever the stream ends.
	ExpectOffset *int64
	// Producer is the id of an idempotent producer, and Sequence its number of the first record. Records that the
	// stream has already are left out, so such an append may be sent again through any gateway. A Producer counts.
	Producer string
	Sequence int64
	// ProducerStart is the first sequence of a producer that the stream has never seen.
	ProducerStart int64
	// Atomic: after any crash the stream has all records or none; they have to fit into one entry.
	Atomic bool
	// Create the stream if it does not exist.
	Create bool
}

// At is an offset for options where none is meant by nil.
func At(offset int64) *int64 { return &offset }

// Append writes records and returns when a quorum of bookies has them on disk. They are written all or, if one of them
// is refused, not at all. A body has at most 16 MiB (ErrTooLarge); values alone take the least of it.
func (s *Stream) Append(ctx context.Context, records []Record, options *AppendOptions) (Appended, error) {
	op := "append to stream " + s.String()
	if options == nil {
		options = &AppendOptions{}
	}
	media, body, err := encodeRecords(records)
	if err != nil {
		return Appended{}, badArgument(op, err.Error())
	}
	if len(records) == 0 {
		return Appended{0, -1, -1}, nil
	}
	if options.Producer == "" && (options.Sequence != 0 || options.ProducerStart != 0) {
		return Appended{}, badArgument(op, "Sequence and ProducerStart go with a Producer: name one")
	}
	r := s.request("append to stream", http.MethodPost, "records")
	r.media, r.body, r.query, r.route = media, body, options.query(), s.String()
	if options.Producer != "" {
		r.repeated = always
	}
	got, err := s.client.call(ctx, r)
	if err != nil {
		return Appended{}, err
	}
	var found struct {
		Records int    `json:"records"`
		First   *int64 `json:"first_offset"`
		Last    *int64 `json:"last_offset"`
	}
	if err := decodeJSON(got.body, &found); err != nil {
		return Appended{}, s.client.unreadable(r, got, err)
	}
	return Appended{found.Records, orNone(found.First), orNone(found.Last)}, nil
}

func (o *AppendOptions) query() url.Values {
	query := url.Values{}
	if o.ExpectOffset != nil {
		query.Set("expect_offset", strconv.FormatInt(*o.ExpectOffset, 10))
	}
	if o.Producer != "" {
		query.Set("producer", o.Producer)
		query.Set("sequence", strconv.FormatInt(o.Sequence, 10))
		if o.ProducerStart != 0 {
			query.Set("producer_start", strconv.FormatInt(o.ProducerStart, 10))
		}
	}
	if o.Atomic {
		query.Set("atomic", "true")
	}
	if o.Create {
		query.Set("create", "true")
	}
	return query
}

func orNone(offset *int64) int64 {
	if offset == nil {
		return -1
	}
	return *offset
}
