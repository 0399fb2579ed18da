// Migrations as drizzle-kit writes them, the second of which makes a table anew; prints one JSON object.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createClient } from "@libsql/client";
import { eq, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/libsql";
import { migrate } from "drizzle-orm/libsql/migrator";
import { integer, sqliteTable, text } from "drizzle-orm/sqlite-core";

const FIRST = `CREATE TABLE \`author\` (
	\`id\` integer PRIMARY KEY NOT NULL,
	\`name\` text
);
--> statement-breakpoint
CREATE TABLE \`book\` (
	\`id\` integer PRIMARY KEY NOT NULL,
	\`author\` integer NOT NULL,
	FOREIGN KEY (\`author\`) REFERENCES \`author\`(\`id\`) ON UPDATE no action ON DELETE cascade
);`;
const ANEW = (rows) => `PRAGMA foreign_keys=OFF;--> statement-breakpoint
CREATE TABLE \`__new_author\` (
	\`id\` integer PRIMARY KEY NOT NULL,
	\`name\` text NOT NULL
);
--> statement-breakpoint
INSERT INTO \`__new_author\`("id", "name") SELECT "id", "name" FROM \`author\`${rows};--> statement-breakpoint
DROP TABLE \`author\`;--> statement-breakpoint
ALTER TABLE \`__new_author\` RENAME TO \`author\`;--> statement-breakpoint
PRAGMA foreign_keys=ON;`;

const folder = mkdtempSync(join(tmpdir(), "drizzle-"));
const written = [];
const write = (tag, text) => {
  written.push({ idx: written.length, version: "6", when: 1700000000000 + written.length, tag, breakpoints: true });
  mkdirSync(join(folder, "meta"), { recursive: true });
  writeFileSync(join(folder, `${tag}.sql`), text);
  const journal = { version: "7", dialect: "sqlite", entries: written };
  writeFileSync(join(folder, "meta", "_journal.json"), JSON.stringify(journal));
};

const author = sqliteTable("author", { id: integer("id").primaryKey(), name: text("name") });
const book = sqliteTable("book", { id: integer("id").primaryKey(), author: integer("author").references(() => author.id) });
const client = createClient({ url: process.argv[2] });
const db = drizzle(client);
const seen = {};
write("0000_first", FIRST);
await migrate(db, { migrationsFolder: folder });
await db.insert(author).values([{ id: 1, name: "a" }, { id: 2, name: "b" }]);
await db.insert(book).values([{ id: 10, author: 1 }, { id: 20, author: 2 }]);
write("0001_anew", ANEW(""));
await migrate(db, { migrationsFolder: folder });
seen.rows = await db.select().from(book).innerJoin(author, eq(book.author, author.id)).orderBy(book.id);
seen.keys = await db.insert(book).values({ id: 30, author: 3 }).then(() => "none", (error) => String(error.cause?.code ?? error.code));
// A migration that loses rows that others name: refused, and nothing of it is there.
write("0002_loses", ANEW(" WHERE id = 1"));
seen.lost = await migrate(db, { migrationsFolder: folder }).then(() => "none", (error) => String(error.cause?.code ?? error.code));
seen.after = (await db.all(sql`SELECT count(*) AS n FROM book JOIN author ON author.id = book.author`))[0].n;
seen.migrations = (await db.all(sql`SELECT count(*) AS n FROM __drizzle_migrations`))[0].n;
seen.inTransaction = await db.transaction(async (inside) => {
  await inside.insert(author).values({ id: 4, name: "d" });
  return (await inside.select().from(author)).length;
});
client.close();
rmSync(folder, { recursive: true });
console.log(JSON.stringify(seen));
