package buckram

import (
	"context"
	"fmt"
	"sync"
)

// Producer appends records that are stored once each, whatever happens on the way: it numbers them, and the stream
// leaves out numbers that it has. From Stream.Producer.
type Producer struct {
	stream *Stream
	id     string
	start  int64

	mu      sync.Mutex
	next    int64
	pending []Record
}

// Producer makes a producer with an id of one's own, which is one in the whole stream. `next` is the sequence of the
// first record that it appends: 0 for a new id. A program that goes on after a crash takes up where it was: with the
// sequence of a record whose append was not acknowledged, such as its line in the file that it came from.
func (s *Stream) Producer(id string, next int64) *Producer {
	return &Producer{stream: s, id: id, start: next, next: next}
}

// Next is the sequence of the next record.
func (p *Producer) Next() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next + int64(len(p.pending))
}

// Append writes records and returns when they are acknowledged. Appends go one after another, in the order of the
// calls that got the turn.
//
// After ErrOutcomeUnknown the records keep their sequences, and the producer keeps the records: the next Append sends
// them again before its own, so do not pass them again. Flush only does the former. After any other error nothing of
// this call was written, and the sequences are free for other records; ErrProducerInDoubt is of the records before.
func (p *Producer) Append(ctx context.Context, records []Record) (Appended, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.settle(ctx); err != nil {
		return Appended{}, &Error{Op: "append to stream " + p.stream.String(), Code: ErrProducerInDoubt, Retryable: true,
			Message: fmt.Sprintf("it is not known yet whether %d records from sequence %d on were stored, and these were "+
				"not sent: call again (%v)", len(p.pending), p.next, err)}
	}
	found, err := p.send(ctx, records)
	switch {
	case err == nil:
		p.next += int64(len(records))
	case asError(err).Unknown:
		p.pending = append([]Record(nil), records...)
	}
	return found, err
}

// Flush sends again what the last Append left with an unknown outcome.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settle(ctx)
}

func (p *Producer) settle(ctx context.Context) error {
	if len(p.pending) == 0 {
		return nil
	}
	if _, err := p.send(ctx, p.pending); err != nil {
		asError(err).Unknown = true // whatever it says now: they may have been stored before
		return err
	}
	p.next += int64(len(p.pending))
	p.pending = nil
	return nil
}

func (p *Producer) send(ctx context.Context, records []Record) (Appended, error) {
	options := &AppendOptions{Producer: p.id, Sequence: p.next, ProducerStart: p.start}
	return p.stream.Append(ctx, records, options)
}
