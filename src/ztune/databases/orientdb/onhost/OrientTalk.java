// What every program of ours on OrientDB does the same way, whatever its version. Commands come on standard input, one
// line each: a word, then its arguments, divided by tabs. Answers are lines of JSON on standard output:
// {"progress": 0.5}, then {"done": {…}} or {"error": "…"}. Ends when its input does.
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;

abstract class OrientTalk {
  static final String NAME = "graph";
  static final String VERTEX = "Resource";
  static final String EDGE = "Statement";
  private PrintStream answers;

  /** Does what the words say, and puts what came of it into found. */
  abstract void act(String[] words, Map<String, Object> found) throws Exception;

  /** Closes what is open. */
  abstract void end();

  abstract void begin();

  abstract void commit();

  /** Looks up or creates the vertices of subject and object, and makes the edge; counts those found and created. */
  abstract void triple(String subject, String predicate, String object, long[] counts);

  void serve() throws Exception {
    // OrientDB and its logger may print; only answers go where answers are read.
    answers = new PrintStream(new FileOutputStream(java.io.FileDescriptor.out), true, "UTF-8");
    System.setOut(System.err);
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    String line;
    int status = 0;
    while ((line = commands.readLine()) != null) {
      String[] words = line.split("\t", -1);
      try {
        Map<String, Object> found = new TreeMap<>();
        act(words, found);
        say("done", found);
      } catch (Throwable problem) {
        problem.printStackTrace();
        say("error", reason(problem));
        // After an error of the JVM or of storage nothing that follows could be believed.
        status = 1;
        break;
      }
    }
    end();
    System.exit(status);
  }

  static String reason(Throwable problem) {
    Throwable root = problem;
    while (root.getCause() != null && root.getCause() != root) root = root.getCause();
    String text = root.getMessage() == null ? root.toString() : root.getClass().getSimpleName() + ": " + root.getMessage();
    return text.replaceAll("\\s+", " ");
  }

  // Each line of the file is "subject predicate object .", divided after the second word.
  void triples(String file, int every, long lines, Map<String, Object> found) throws Exception {
    long[] counts = new long[2];
    long[] times = new long[(int) Math.min(Integer.MAX_VALUE - 8, lines / every + 2)];
    int commits = 0;
    long done = 0;
    long began = System.nanoTime();
    long from = began;
    long said = began;
    try (BufferedReader reader =
        new BufferedReader(new InputStreamReader(new FileInputStream(file), StandardCharsets.UTF_8), 1 << 16)) {
      String line;
      begin();
      while ((line = reader.readLine()) != null) {
        String[] term = terms(line);
        triple(term[0], term[1], term[2], counts);
        done++;
        if (done % every == 0) {
          commit();
          long now = System.nanoTime();
          times[commits++] = now - from;
          from = now;
          if (now - said > 500_000_000L) {
            said = now;
            answers.println("{\"progress\": " + Math.min(0.99, (double) done / lines) + "}");
          }
          begin();
        }
      }
      commit();
      if (done % every != 0) times[commits++] = System.nanoTime() - from;
    }
    found.put("seconds", (System.nanoTime() - began) / 1e9);
    found.put("triples", done);
    found.put("found", counts[0]);
    found.put("created", counts[1]);
    found.put("commits", (long) commits);
    latency(Arrays.copyOf(times, commits), found);
  }

  static String[] terms(String line) {
    int first = line.indexOf(' ');
    int second = line.indexOf(' ', first + 1);
    int end = line.length() - 2;
    if (first < 1 || second < 0 || end <= second || !line.endsWith(" .")) throw new IllegalArgumentException("no triple: " + line);
    return new String[] {line.substring(0, first), line.substring(first + 1, second), line.substring(second + 1, end)};
  }

  static void latency(long[] ns, Map<String, Object> found) {
    if (ns.length == 0) return;
    Arrays.sort(ns);
    double total = 0;
    for (long one : ns) total += one;
    found.put("mean_ms", total / ns.length / 1e6);
    String[] names = {"p50", "p90", "p99", "p999"};
    double[] shares = {0.5, 0.9, 0.99, 0.999};
    for (int i = 0; i < names.length; i++)
      found.put(names[i] + "_ms", ns[(int) Math.min(ns.length - 1, Math.ceil(shares[i] * ns.length) - 1)] / 1e6);
    found.put("max_ms", ns[ns.length - 1] / 1e6);
  }

  static void sync(String file) throws Exception {
    try (FileOutputStream out = new FileOutputStream(file, true)) {
      out.getFD().sync();
    }
  }

  void say(String key, Object value) {
    StringBuilder text = new StringBuilder();
    json(Map.of(key, value), text);
    answers.println(text);
  }

  @SuppressWarnings("unchecked")
  static void json(Object value, StringBuilder out) {
    if (value instanceof Map) {
      out.append('{');
      String comma = "";
      for (Map.Entry<String, Object> entry : ((Map<String, Object>) value).entrySet()) {
        out.append(comma);
        json(entry.getKey(), out);
        out.append(": ");
        json(entry.getValue(), out);
        comma = ", ";
      }
      out.append('}');
    } else if (value instanceof Number) {
      out.append(value);
    } else {
      out.append('"');
      for (char c : String.valueOf(value).toCharArray()) {
        if (c == '"' || c == '\\') out.append('\\').append(c);
        else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
        else out.append(c);
      }
      out.append('"');
    }
  }
}
