package buckram

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestValuesAloneAreFramed(t *testing.T) {
	media, body, err := encodeRecords([]Record{{Value: []byte("ab")}, {Value: nil}, {Value: []byte{}}})
	if err != nil || media != mediaValues || string(body) != "\x00\x00\x00\x02ab\xff\xff\xff\xff\x00\x00\x00\x00" {
		t.Fatal(media, body, err)
	}
}

func TestRecordsWithMoreAreLines(t *testing.T) {
	txid := int64(5)
	for _, record := range []Record{
		{Value: []byte{0xff}, Key: []byte("k")},
		{Value: nil, Key: []byte{}},
		{Value: []byte("v"), TxID: &txid},
		{Value: []byte("v"), Time: time.UnixMicro(-3)},
		{Value: []byte("v"), Headers: map[string][]byte{"text": []byte("é<"), "bytes": {0xfe, 0}}},
	} {
		media, body, err := encodeRecords([]Record{record, {Value: []byte("other")}})
		if err != nil || media != mediaLines || strings.Count(string(body), "\n") != 2 {
			t.Fatal(media, string(body), err)
		}
		var sent map[string]any
		if err := json.Unmarshal(body[:strings.IndexByte(string(body), '\n')], &sent); err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"offset", "append_time_us", "producer", "sequence"} {
			if _, there := sent[field]; there {
				t.Error("a record says where it is before it is there:", field)
			}
		}
		sent["offset"], sent["append_time_us"] = 9, 1000
		if record.Time.IsZero() {
			sent["timestamp_us"] = 0
		}
		text, _ := json.Marshal(sent)
		got, err := parseRecord(text)
		if err != nil {
			t.Fatal(err)
		}
		record.Offset, record.AppendTime = 9, time.UnixMicro(1000)
		if record.Time.IsZero() {
			record.Time = time.UnixMicro(0)
		}
		if !reflect.DeepEqual(got, record) {
			t.Errorf("%+v is not %+v", got, record)
		}
	}
}

func TestNullAndEmptyAreNotTheSame(t *testing.T) {
	got, err := parseRecord([]byte(`{"offset":0,"timestamp_us":0,"append_time_us":0,"key_base64":"","value_base64":null}`))
	if err != nil || got.Key == nil || got.Value != nil {
		t.Fatal(got, err)
	}
}

func TestARecordWithoutItsPlaceIsRefused(t *testing.T) {
	for _, text := range []string{`{}`, `[]`, `{"offset":0}`, `{"offset":"0"}`, `{"offset":0,"timestamp_us":0,"append_time_us":0,"value_base64":"%"}`} {
		if got, err := parseRecord([]byte(text)); err == nil {
			t.Error(text, got)
		}
	}
}
