package buckram

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"time"
	"unicode/utf8"
)

// Record is one record of a stream.
type Record struct {
	// Offset is the number of the record in its stream. Reads set it.
	Offset int64
	// Value may be nil: that deletes a key, where a stream is kept by keys.
	Value []byte
	// Key may be nil: the record has none.
	Key []byte
	// Headers are small texts or bytes beside the value.
	Headers map[string][]byte
	// Time is when it happened, in microseconds; the zero time means when it is appended.
	Time time.Time
	// AppendTime is when it was appended, by the writer's clock. Reads set it.
	AppendTime time.Time
	// TxID is a number of the application that never becomes less in a stream; nil: none.
	TxID *int64
	// Producer and Sequence are those under which it was appended, if it was. Reads set them.
	Producer string
	Sequence int64
}

// line is a record as JSON, as a gateway takes and gives it.
type line struct {
	Offset       *int64            `json:"offset,omitempty"`
	TimestampUS  *int64            `json:"timestamp_us,omitempty"`
	AppendTimeUS *int64            `json:"append_time_us,omitempty"`
	Key          []byte            `json:"key_base64"`
	Value        []byte            `json:"value_base64"`
	Headers      map[string]string `json:"headers,omitempty"`
	Coded        map[string][]byte `json:"headers_base64,omitempty"`
	TxID         *int64            `json:"txid,omitempty"`
	Producer     string            `json:"producer,omitempty"`
	Sequence     int64             `json:"sequence,omitempty"`
}

func (l *line) record() (Record, error) {
	if l.Offset == nil || l.TimestampUS == nil || l.AppendTimeUS == nil {
		return Record{}, fmt.Errorf("a record has no offset or no times")
	}
	found := Record{
		Offset: *l.Offset, Value: l.Value, Key: l.Key, TxID: l.TxID, Producer: l.Producer, Sequence: l.Sequence,
		Time: time.UnixMicro(*l.TimestampUS), AppendTime: time.UnixMicro(*l.AppendTimeUS),
	}
	if len(l.Headers)+len(l.Coded) > 0 {
		found.Headers = make(map[string][]byte, len(l.Headers)+len(l.Coded))
		for name, text := range l.Headers {
			found.Headers[name] = []byte(text)
		}
		for name, value := range l.Coded {
			found.Headers[name] = value
		}
	}
	return found, nil
}

func parseRecord(text []byte) (Record, error) {
	var found line
	if err := json.Unmarshal(text, &found); err != nil {
		return Record{}, err
	}
	return found.record()
}

// encodeRecords makes a body: values with their lengths where records have nothing else, or else lines of JSON.
func encodeRecords(records []Record) (media string, body []byte, err error) {
	plain, size := true, 0
	for i := range records {
		one := &records[i]
		if uint64(len(one.Value)) >= math.MaxUint32 {
			return "", nil, fmt.Errorf("record %d has %d bytes: split it", i, len(one.Value))
		}
		plain = plain && one.Key == nil && len(one.Headers) == 0 && one.Time.IsZero() && one.TxID == nil
		size += 4 + len(one.Value)
	}
	if plain {
		body = make([]byte, 0, size)
		for i := range records {
			body = appendFramed(body, records[i].Value)
		}
		return mediaValues, body, nil
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	for i := range records {
		if err := encoder.Encode(lineOf(&records[i])); err != nil {
			return "", nil, fmt.Errorf("record %d: %w", i, err)
		}
	}
	return mediaLines, text.Bytes(), nil
}

func lineOf(record *Record) *line {
	made := &line{Key: record.Key, Value: record.Value, TxID: record.TxID}
	if !record.Time.IsZero() {
		moment := record.Time.UnixMicro()
		made.TimestampUS = &moment
	}
	for name, value := range record.Headers {
		if utf8.Valid(value) {
			if made.Headers == nil {
				made.Headers = map[string]string{}
			}
			made.Headers[name] = string(value)
			continue
		}
		if made.Coded == nil {
			made.Coded = map[string][]byte{}
		}
		made.Coded[name] = value
	}
	return made
}

// appendFramed adds a value with its length in four bytes before it; nil has a length of its own.
func appendFramed(body, value []byte) []byte {
	if value == nil {
		return append(body, 0xff, 0xff, 0xff, 0xff)
	}
	return append(binary.BigEndian.AppendUint32(body, uint32(len(value))), value...)
}

// lines calls do with each line of a body.
func lines(body []byte, do func(line []byte) error) error {
	for len(body) > 0 {
		one, rest, _ := bytes.Cut(body, []byte("\n"))
		body = rest
		if len(one) == 0 {
			continue
		}
		if err := do(one); err != nil {
			return err
		}
	}
	return nil
}
