package herd;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;

/**
 * A client of HerdDB over JDBC that fills and reads the table "numbers". Rows are numbered from 0; each has the text that
 * its number says.
 *
 * <p>Commands are lines of standard input, at whose end it ends: "run SQL", "insert RATE" (rows in a second, in the
 * background, each until a server has it), "finish", "read". Answers are lines: "ready 0", "done RESULT" (the rows of a
 * query, separated by |), "acknowledged N", "read N", "finished COUNT", "end COUNT", and "failed WHAT".
 */
public final class Rows {
    private final String url;
    private final AtomicBoolean inserting = new AtomicBoolean();
    private Thread inserter;
    private int count;

    private Rows(String url) {
        this.url = url;
    }

    public static void main(String[] args) throws Exception {
        Rows rows = new Rows(args[0]);
        say("ready 0");
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ", 2);
                rows.obey(words[0], words.length > 1 ? words[1] : "");
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            say("failed " + failure);
        }
        Runtime.getRuntime().halt(0);
    }

    private void obey(String command, String rest) throws Exception {
        switch (command) {
            case "run":
                run(rest);
                break;
            case "insert":
                double rate = Double.parseDouble(rest);
                inserting.set(true);
                inserter = new Thread(() -> insert(rate));
                inserter.setDaemon(true);
                inserter.start();
                break;
            case "finish":
                inserting.set(false);
                inserter.join();
                break;
            case "read":
                read();
                break;
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private Connection connect() throws SQLException {
        return DriverManager.getConnection(url, "sa", "hdb");
    }

    private void run(String sql) throws Exception {
        try (Connection connection = connect(); Statement statement = connection.createStatement()) {
            if (sql.startsWith("select")) {
                StringBuilder all = new StringBuilder();
                try (ResultSet found = statement.executeQuery(sql)) {
                    int columns = found.getMetaData().getColumnCount();
                    while (found.next()) {
                        for (int i = 1; i <= columns; i++) {
                            all.append(found.getObject(i)).append(i == columns ? " | " : " ");
                        }
                    }
                }
                say("done " + all);
            } else {
                say("done " + statement.executeUpdate(sql));
            }
        }
    }

    /** Row after row, each tried until a server has it: one that failed may be there already. */
    private void insert(double rate) {
        long apart = (long) (TimeUnit.SECONDS.toNanos(1) / rate);
        boolean again = false;
        while (inserting.get()) {
            try (Connection connection = connect();
                    PreparedStatement put = connection.prepareStatement("insert into numbers(n, text) values(?, ?)")) {
                long next = System.nanoTime();
                while (inserting.get()) {
                    try {
                        put.setInt(1, count);
                        put.setString(2, text(count));
                        put.executeUpdate();
                    } catch (SQLException failure) {
                        if (!again || !failure.toString().toLowerCase().contains("duplicate")) {
                            throw failure;
                        }
                    }
                    say("acknowledged " + count++);
                    again = false;
                    next += apart;
                    LockSupport.parkNanos(next - System.nanoTime());
                }
            } catch (SQLException failure) {
                System.err.println("row " + count + ": " + failure);
                again = true;
                LockSupport.parkNanos(200_000_000);
            }
        }
        say("finished " + count);
    }

    private void read() throws Exception {
        int found = 0;
        try (Connection connection = connect(); Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("select n, text from numbers order by n")) {
            while (rows.next()) {
                int number = rows.getInt(1);
                if (!rows.getString(2).equals(text(number))) {
                    throw new IllegalStateException("row " + number + " has another text");
                }
                say("read " + number);
                found++;
            }
        }
        say("end " + found);
    }

    private static String text(int number) {
        return ("row " + number + " ").repeat(1 + number % 20);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }
}
