// What a program with database/sql and libSQL's driver does; prints one JSON object that the test looks at.
package main

import (
	"database/sql"
	"encoding/json"
	"os"
	"strings"

	_ "github.com/tursodatabase/libsql-client-go/libsql"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	db := must(sql.Open("libsql", os.Args[1]))
	seen := map[string]any{}
	must(db.Exec("CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT UNIQUE, b BLOB)"))
	result := must(db.Exec("INSERT INTO t (s, b) VALUES (?, ?)", "é", []byte{0, 255}))
	seen["inserted"] = []int64{must(result.RowsAffected()), must(result.LastInsertId())}
	_, err := db.Exec("INSERT INTO t (s) VALUES (:s)", sql.Named("s", "é"))
	seen["unique"] = err != nil && strings.Contains(err.Error(), "UNIQUE constraint failed: t.s")
	transaction := must(db.Begin())
	must(transaction.Exec("INSERT INTO t (s) VALUES ('b')"))
	must(0, transaction.Rollback())
	transaction = must(db.Begin())
	must(transaction.Exec("INSERT INTO t (s) VALUES ('c')"))
	must(0, transaction.Commit())
	rows := must(db.Query("SELECT id, s, b FROM t ORDER BY id"))
	found := [][]any{}
	for rows.Next() {
		var id int
		var s string
		var b []byte
		must(0, rows.Scan(&id, &s, &b))
		found = append(found, []any{id, s, len(b)})
	}
	seen["rows"] = found
	must(0, json.NewEncoder(os.Stdout).Encode(seen))
}
