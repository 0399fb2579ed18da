// Orders writes records to a stream, each once whatever happens, follows the stream, moves a cursor,
// and reads the stream again.
//
//	BUCKRAM_GATEWAY=http://127.0.0.1:8080 go run ./examples/orders
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"buckram.invalid/buckram"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	client, err := buckram.Open("") // the address is in BUCKRAM_GATEWAY, a token in BUCKRAM_TOKEN
	if err != nil {
		return err
	}
	defer client.Close()
	orders := client.Stream("default", "orders")
	if _, err := orders.Create(ctx, nil); err != nil && !errors.Is(err, buckram.ErrStreamExists) {
		return err
	}

	producer := orders.Producer(fmt.Sprintf("example-%d", os.Getpid()), 0)
	appended, err := producer.Append(ctx, []buckram.Record{
		{Key: []byte("ann"), Value: []byte("5 kg")},
		{Key: []byte("bob"), Value: []byte("2 kg")},
	})
	if err != nil {
		return err
	}
	fmt.Printf("offsets %d to %d\n", appended.First, appended.Last)

	// A tail waits for what comes. Acknowledged records can be read within 20 ms.
	for record, err := range orders.Tail(ctx, &buckram.TailOptions{From: buckram.At(appended.First)}) {
		if err != nil {
			return err
		}
		fmt.Printf("ship %d to %s\n", record.Offset, record.Key)
		if err := orders.MoveCursor(ctx, "shipping", record.Offset+1); err != nil {
			return err
		}
		if record.Offset == appended.Last {
			break
		}
	}

	// Reading ends where the stream ends now.
	for record, err := range orders.Records(ctx, &buckram.ReadOptions{From: buckram.At(appended.First)}) {
		if err != nil {
			return err
		}
		fmt.Printf("record %d: %s ordered %s\n", record.Offset, record.Key, record.Value)
	}
	return nil
}
