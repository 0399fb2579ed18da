package buckram

import (
	"bufio"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

func allEvents(text string, buffer int) ([]event, error) {
	source := &events{bufio.NewReaderSize(strings.NewReader(text), buffer)}
	var found []event
	for {
		one, err := source.next()
		if err != nil {
			return found, err
		}
		found = append(found, one)
	}
}

func TestEvents(t *testing.T) {
	text := "retry: 2000\n\n: still there\n\nid: 7\ndata: {\"a\": 1}\n\nevent: end\r\ndata:x\r\ndata: y\r\n\r\nid: 8\ndata: cut off\n"
	want := []event{{id: "7", data: []byte(`{"a": 1}`)}, {name: "end", data: []byte("x\ny")}}
	for _, buffer := range []int{16, 4096} {
		got, err := allEvents(text, buffer)
		if !reflect.DeepEqual(got, want) || !errors.Is(err, io.EOF) {
			t.Errorf("%q %v", got, err)
		}
	}
	if _, err := allEvents("data: no end of the line", 16); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

func TestAnEventHasALimit(t *testing.T) {
	for name, from := range map[string]io.Reader{
		"one line": io.MultiReader(strings.NewReader("data: "), endlessText{}),
		"lines":    endlessLines{},
	} {
		_, err := (&events{bufio.NewReaderSize(from, 4096)}).next()
		if err == nil || !strings.Contains(err.Error(), "more than") {
			t.Error(name, err)
		}
	}
}

type endlessText struct{}

func (endlessText) Read(into []byte) (int, error) {
	for i := range into {
		into[i] = 'x'
	}
	return len(into), nil
}

type endlessLines struct{}

func (endlessLines) Read(into []byte) (int, error) {
	line := "data: " + strings.Repeat("x", 1000) + "\n"
	return copy(into, strings.Repeat(line, len(into)/len(line))), nil
}
