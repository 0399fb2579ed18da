package buckram

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

// mostEventBytes is above a record in base64, and bounds what a tail has in memory.
const mostEventBytes = 64 << 20

// event is one server-sent event.
type event struct {
	name, id string
	data     []byte
}

// events reads server-sent events, as the HTML standard describes them. Comments are passed over.
type events struct {
	from *bufio.Reader
}

// next returns the next event that has data, or else io.EOF: an event that is cut off does not count.
func (e *events) next() (event, error) {
	var found event
	lines := 0
	for {
		line, err := e.line()
		if err != nil {
			return event{}, err
		}
		if len(line) == 0 {
			if lines > 0 {
				return found, nil
			}
			found = event{}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "data":
			if lines++; lines > 1 {
				found.data = append(found.data, '\n')
			}
			found.data = append(found.data, value...)
			if len(found.data) > mostEventBytes {
				return event{}, tooLongEvent()
			}
		case "event":
			found.name = string(value)
		case "id":
			found.id = string(value)
		}
	}
}

// line is the next line without its end. It is kept until the next call.
func (e *events) line() ([]byte, error) {
	line, err := e.from.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		whole := append([]byte(nil), line...)
		for err == bufio.ErrBufferFull {
			line, err = e.from.ReadSlice('\n')
			if len(whole)+len(line) > mostEventBytes {
				return nil, tooLongEvent()
			}
			whole = append(whole, line...)
		}
		line = whole
	}
	if err == io.EOF && len(line) > 0 {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

func tooLongEvent() error {
	return fmt.Errorf("an event has more than %d bytes", mostEventBytes)
}
