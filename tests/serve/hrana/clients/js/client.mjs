// What a program with @libsql/client does; prints one JSON object that the test looks at.
import { createClient } from "@libsql/client";

const client = createClient({ url: process.argv[2] });
const seen = {};
const code = async (work) => {
  try {
    await work();
    return "no error";
  } catch (error) {
    return error.code;
  }
};
const count = async () => (await client.execute("SELECT count(*) AS n FROM t")).rows[0].n;

await client.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT UNIQUE, f REAL, b BLOB)");
const inserted = await client.execute({
  sql: "INSERT INTO t (s, f, b) VALUES (?, ?, ?)",
  args: ["é", 1.5, new Uint8Array([0, 255])],
});
seen.inserted = [inserted.rowsAffected, String(inserted.lastInsertRowid)];
await client.execute({ sql: "INSERT INTO t (s, f, b) VALUES (:s, @f, $b)", args: { s: "b", f: 2n, b: null } });
const selected = await client.execute("SELECT * FROM t ORDER BY id");
seen.columns = [selected.columns, selected.columnTypes];
seen.rows = selected.rows.map((row) => [row.id, row.s, row.f, row.b && Array.from(new Uint8Array(row.b))]);
seen.batch = (await client.batch(["INSERT INTO t (s) VALUES ('c')", "SELECT max(id) FROM t"], "write"))[1].rows[0][0];
seen.failedBatch = await code(() =>
  client.batch(["INSERT INTO t (s) VALUES ('d')", "INSERT INTO t (s) VALUES ('b')"], "write"),
);
seen.afterFailedBatch = await count();
let transaction = await client.transaction("write");
await transaction.execute("INSERT INTO t (s) VALUES ('e')");
await transaction.batch(["INSERT INTO t (s) VALUES ('f')"]);
await transaction.rollback();
seen.afterRollback = await count();
transaction = await client.transaction("write");
await transaction.execute("INSERT INTO t (s) VALUES ('g')");
seen.inTransaction = await code(() => transaction.execute("INSERT INTO t (s) VALUES ('g')"));
await transaction.commit();
seen.afterCommit = await count();
transaction = await client.transaction("read");
seen.readOnly = await code(() => transaction.execute("DELETE FROM t"));
transaction.close();
await client.executeMultiple("CREATE TABLE u (x); INSERT INTO u VALUES (1); INSERT INTO u VALUES (2);");
seen.script = (await client.execute("SELECT sum(x) FROM u")).rows[0][0];
seen.syntax = await code(() => client.execute("SELEKT"));
const parallel = [...Array(50).keys()].map((n) => client.execute({ sql: "INSERT INTO u VALUES (?)", args: [n] }));
await Promise.all(parallel);
seen.parallel = (await client.execute("SELECT count(*) FROM u")).rows[0][0];
await client.batch(
  [
    "CREATE TABLE author (id INTEGER PRIMARY KEY)",
    "CREATE TABLE book (author INTEGER REFERENCES author ON DELETE CASCADE)",
    "INSERT INTO author VALUES (1)",
    "INSERT INTO book VALUES (1)",
  ],
  "write",
);
await client.migrate([
  "CREATE TABLE new_author (id INTEGER PRIMARY KEY, name TEXT)",
  "INSERT INTO new_author (id) SELECT id FROM author",
  "DROP TABLE author",
  "ALTER TABLE new_author RENAME TO author",
]);
seen.migrated = (await client.execute("SELECT count(*) FROM book JOIN author ON id = author")).rows[0][0];
client.close();
console.log(JSON.stringify(seen));
