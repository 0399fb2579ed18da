// Package buckram is a client of Buckram's gateways: streams and ledgers over HTTP.
//
//	client, err := buckram.Open("http://127.0.0.1:8080")
//	orders := client.Stream("shop", "orders")
//	appended, err := orders.Append(ctx, []buckram.Record{{Value: []byte("5 kg")}}, nil)
//	for record, err := range orders.Records(ctx, nil) { ... }
//	for record, err := range orders.Tail(ctx, nil) { ... }
//
// It needs the standard library only. A Client and what is made from it may be used by many goroutines at once;
// a Producer counts, so its appends go one after another.
//
// Every call takes a context. A request that failed is sent again where that cannot do harm: it reads, or it was never
// begun, or it carries a request key to the process that knows the key, or a producer with sequences. Otherwise the
// error says that the outcome is unknown: errors.Is(err, buckram.ErrOutcomeUnknown).
package buckram
