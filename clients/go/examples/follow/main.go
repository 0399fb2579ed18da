// Follow prints the records of a stream as they come, a line each: offset and value.
//
//	BUCKRAM_GATEWAY=http://127.0.0.1:8080 go run ./examples/follow default orders [OFFSET]
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"buckram.invalid/buckram"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, words []string) error {
	if len(words) < 2 || len(words) > 3 {
		return fmt.Errorf("usage: follow NAMESPACE STREAM [OFFSET]")
	}
	options := &buckram.TailOptions{FromEarliest: len(words) == 2}
	if len(words) == 3 {
		offset, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil {
			return fmt.Errorf("offset %q: needs a whole number", words[2])
		}
		options.From = &offset
	}
	client, err := buckram.Open("", buckram.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	if err != nil {
		return err
	}
	defer client.Close()
	for record, err := range client.Stream(words[0], words[1]).Tail(ctx, options) {
		if err != nil {
			return err
		}
		fmt.Println(record.Offset, string(record.Value))
	}
	return nil
}
