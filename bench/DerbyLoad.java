import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.Statement;
import java.util.Locale;
import java.util.Random;

/**
 * An embedded Apache Derby under load, for bench/observe_databases.py.
 *
 * <p>Makes a table in the database at the first argument, prints "ready", and for each line "SECONDS" on stdin works
 * for so long: single-row updates, each committed, and two reads by key for each. Then it prints how many it
 * committed. Ends with stdin.
 */
final class DerbyLoad {
    private static final int ROWS = 100_000;

    public static void main(String[] arguments) throws Exception {
        String url = "jdbc:derby:" + arguments[0];
        Random random = new Random(1);
        try (Connection db = DriverManager.getConnection(url + ";create=true")) {
            db.setAutoCommit(false);
            make(db, random);
            System.out.println("ready");
            BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
            for (String line; (line = orders.readLine()) != null; ) {
                System.out.println(work(db, random, Double.parseDouble(line)));
            }
        }
    }

    private static void make(Connection db, Random random) throws Exception {
        try (Statement all = db.createStatement()) {
            all.execute("CREATE TABLE account (id INT PRIMARY KEY, name VARCHAR(40), note VARCHAR(200), cents INT)");
        }
        try (PreparedStatement row = db.prepareStatement("INSERT INTO account VALUES (?, ?, ?, 0)")) {
            for (int id = 0; id < ROWS; id++) {
                row.setInt(1, id);
                row.setString(2, String.format(Locale.ROOT, "holder %d of branch %d", id, id % 97));
                row.setString(3, words(random));
                row.executeUpdate();
                if (id % 5000 == 0) {
                    db.commit();
                }
            }
        }
        db.commit();
    }

    private static int work(Connection db, Random random, double seconds) throws Exception {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        int commits = 0;
        try (PreparedStatement write = db.prepareStatement("UPDATE account SET cents = cents + 1 WHERE id = ?");
                PreparedStatement read = db.prepareStatement("SELECT note FROM account WHERE id = ?")) {
            while (System.nanoTime() < end) {
                for (int i = 0; i < 2; i++) {
                    read.setInt(1, random.nextInt(ROWS));
                    read.executeQuery().close();
                }
                write.setInt(1, random.nextInt(ROWS));
                write.executeUpdate();
                db.commit();
                commits++;
            }
        }
        return commits;
    }

    /** Words and numbers that compress about as a table's text does. */
    private static String words(Random random) {
        String[] known = {"paid", "open", "late", "branch", "account", "review", "standing", "order", "closed"};
        StringBuilder text = new StringBuilder();
        while (text.length() < 150) {
            text.append(known[random.nextInt(known.length)]).append(' ').append(random.nextInt(100_000)).append(' ');
        }
        return text.substring(0, 150);
    }
}
