// Works on one OrientDB 3.2 database in its own process. Commands come on standard input, one line each: a word, then
// its arguments, divided by tabs. Answers are lines of JSON on standard output: {"progress": 0.5}, then {"done": {…}}
// or {"error": "…"}. Ends when its input does.
import com.orientechnologies.orient.core.command.OCommandOutputListener;
import com.orientechnologies.orient.core.config.OGlobalConfiguration;
import com.orientechnologies.orient.core.db.ODatabaseDocumentInternal;
import com.orientechnologies.orient.core.db.ODatabaseSession;
import com.orientechnologies.orient.core.db.ODatabaseType;
import com.orientechnologies.orient.core.db.OrientDB;
import com.orientechnologies.orient.core.db.OrientDBConfig;
import com.orientechnologies.orient.core.db.tool.ODatabaseExport;
import com.orientechnologies.orient.core.db.tool.ODatabaseImport;
import com.orientechnologies.orient.core.id.ORID;
import com.orientechnologies.orient.core.index.OIndex;
import com.orientechnologies.orient.core.metadata.schema.OClass;
import com.orientechnologies.orient.core.metadata.schema.OType;
import com.orientechnologies.orient.core.record.OEdge;
import com.orientechnologies.orient.core.record.OVertex;
import com.orientechnologies.orient.core.record.impl.ODocument;
import com.orientechnologies.orient.core.sql.executor.OResultSet;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import java.util.zip.CRC32;

public class OrientWork {
  static final String NAME = "graph";
  static final String VERTEX = "Resource";
  static final String EDGE = "Statement";
  static PrintStream answers;
  static OrientDB orient;
  static ODatabaseSession db;

  public static void main(String[] args) throws Exception {
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
    if (orient != null) {
      if (db != null) {
        db.activateOnCurrentThread();
        db.close();
      }
      orient.close();
    }
    System.exit(status);
  }

  static String reason(Throwable problem) {
    Throwable root = problem;
    while (root.getCause() != null && root.getCause() != root) root = root.getCause();
    String text = root.getMessage() == null ? root.toString() : root.getClass().getSimpleName() + ": " + root.getMessage();
    return text.replaceAll("\\s+", " ");
  }

  static void act(String[] words, Map<String, Object> found) throws Exception {
    switch (words[0]) {
      case "create" -> create(words[1], found);
      case "open" -> open(words[1], found);
      case "schema" -> schema();
      case "triples" -> triples(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]), found);
      case "synch" -> synch(found);
      case "count" -> count(found);
      case "sum" -> sum(found);
      case "export" -> exportTo(words[1], found);
      case "import" -> importFrom(words[1], found);
      case "backup" -> backup(words[1], Integer.parseInt(words[2]), found);
      case "restore" -> restore(words[1], words[2], found);
      case "reimport" -> reimport(words[1], words[2], found);
      case "lucene" -> lucene(found);
      case "search" -> search(words[1], found);
      case "close" -> close();
      default -> throw new IllegalArgumentException("unknown command " + words[0]);
    }
  }

  static OrientDBConfig config() {
    return OrientDBConfig.builder().addConfig(OGlobalConfiguration.CREATE_DEFAULT_USERS, true).build();
  }

  static void create(String directory, Map<String, Object> found) {
    orient = new OrientDB("embedded:" + directory, config());
    orient.create(NAME, ODatabaseType.PLOCAL);
    open(found);
  }

  static void open(String directory, Map<String, Object> found) {
    orient = new OrientDB("embedded:" + directory, config());
    if (!orient.exists(NAME)) throw new IllegalStateException("there is no database in " + directory);
    open(found);
  }

  static void open(Map<String, Object> found) {
    db = orient.open(NAME, "admin", "admin");
    for (OGlobalConfiguration setting : OGlobalConfiguration.values()) {
      String key = setting.getKey();
      if (key.startsWith("storage.") || key.startsWith("tx.")) found.put(key, String.valueOf((Object) setting.getValue()));
    }
  }

  static void close() {
    db.activateOnCurrentThread();
    db.close();
    orient.close();
    db = null;
    orient = null;
  }

  static void schema() {
    OClass vertex = db.createVertexClass(VERTEX);
    vertex.createProperty("iri", OType.STRING).setMandatory(true);
    vertex.createIndex(VERTEX + ".iri", OClass.INDEX_TYPE.UNIQUE, "iri");
    OClass edge = db.createEdgeClass(EDGE);
    edge.createProperty("predicate", OType.STRING);
  }

  static OIndex index() {
    ODatabaseDocumentInternal inside = (ODatabaseDocumentInternal) db;
    return inside.getMetadata().getIndexManagerInternal().getIndex(inside, VERTEX + ".iri");
  }

  static OVertex vertex(OIndex index, String iri, long[] counts) {
    ORID rid;
    try (Stream<ORID> rids = index.getInternal().getRids(iri)) {
      rid = rids.findFirst().orElse(null);
    }
    if (rid != null) {
      counts[0]++;
      return ((ODocument) db.load(rid)).asVertex().get();
    }
    counts[1]++;
    OVertex made = db.newVertex(VERTEX);
    made.setProperty("iri", iri);
    made.save();
    return made;
  }

  // Each line of the file is "subject TAB predicate TAB object" or N-Triples; both are divided after the second word.
  static void triples(String file, int every, long lines, Map<String, Object> found) throws Exception {
    OIndex index = index();
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
      db.begin();
      while ((line = reader.readLine()) != null) {
        String[] term = terms(line);
        OVertex subject = vertex(index, term[0], counts);
        OVertex object = term[2].equals(term[0]) ? subject : vertex(index, term[2], counts);
        if (object == subject) counts[0]++;
        OEdge edge = subject.addEdge(object, EDGE);
        edge.setProperty("predicate", term[1]);
        edge.save();
        done++;
        if (done % every == 0) {
          db.commit();
          long now = System.nanoTime();
          times[commits++] = now - from;
          from = now;
          if (now - said > 500_000_000L) {
            said = now;
            answers.println("{\"progress\": " + Math.min(0.99, (double) done / lines) + "}");
          }
          db.begin();
        }
      }
      db.commit();
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

  // What the disk cache holds goes to the files, and they are synced; then the log can begin anew.
  static void synch(Map<String, Object> found) {
    long began = System.nanoTime();
    ((ODatabaseDocumentInternal) db).getStorage().synch();
    found.put("seconds", (System.nanoTime() - began) / 1e9);
  }

  static void count(Map<String, Object> found) {
    found.put("vertices", has(VERTEX) ? db.countClass(VERTEX) : 0L);
    found.put("edges", has(EDGE) ? db.countClass(EDGE) : 0L);
    found.put("clusters", (long) db.getClusterNames().size());
    found.put("indexes", (long) ((ODatabaseDocumentInternal) db).getMetadata().getIndexManagerInternal()
        .getIndexes((ODatabaseDocumentInternal) db).size());
    long records = 0;
    for (String name : db.getClusterNames()) records += db.countClusterElements(name);
    found.put("records", records);
  }

  static boolean has(String name) {
    return db.getMetadata().getSchema().existsClass(name);
  }

  // The sum of the CRC-32 of every edge as a triple: whatever the order, another edge gives another sum.
  static void sum(Map<String, Object> found) {
    long sum = 0;
    long edges = 0;
    long indexed = 0;
    CRC32 crc = new CRC32();
    for (Iterator<ODocument> all = db.browseClass(EDGE); all.hasNext(); ) {
      OEdge edge = all.next().asEdge().get();
      String text = edge.getFrom().getProperty("iri") + " " + edge.getProperty("predicate") + " " + edge.getTo().getProperty("iri");
      crc.reset();
      crc.update(text.getBytes(StandardCharsets.UTF_8));
      sum += crc.getValue();
      edges++;
    }
    try (Stream<?> keys = index().getInternal().stream()) {
      indexed = keys.count();
    }
    found.put("sum", sum);
    found.put("edges", edges);
    found.put("indexed", indexed);
  }

  static void exportTo(String file, Map<String, Object> found) throws Exception {
    long began = System.nanoTime();
    // OrientDB puts its endings to a name that lacks them, so it must have them.
    if (!file.endsWith(".json.gz")) throw new IllegalArgumentException(file + " must end in .json.gz");
    ODatabaseExport export = new ODatabaseExport((ODatabaseDocumentInternal) db, file, QUIET);
    export.exportDatabase();
    export.close();
    sync(file);
    found.put("seconds", (System.nanoTime() - began) / 1e9);
    found.put("bytes", new File(file).length());
  }

  static void importFrom(String file, Map<String, Object> found) throws Exception {
    long began = System.nanoTime();
    ODatabaseImport work = new ODatabaseImport((ODatabaseDocumentInternal) db, file, QUIET);
    work.importDatabase();
    work.close();
    found.put("seconds", (System.nanoTime() - began) / 1e9);
  }

  static void backup(String file, int level, Map<String, Object> found) throws Exception {
    long began = System.nanoTime();
    try (FileOutputStream out = new FileOutputStream(file)) {
      db.backup(out, null, null, QUIET, level, 1 << 16);
    }
    sync(file);
    found.put("seconds", (System.nanoTime() - began) / 1e9);
    found.put("bytes", new File(file).length());
  }

  // Into another directory, and counted there: a backup that can't be restored is none.
  static void restore(String file, String directory, Map<String, Object> found) throws Exception {
    ODatabaseSession kept = db;
    try (OrientDB other = new OrientDB("embedded:" + directory, config())) {
      other.create(NAME, ODatabaseType.PLOCAL);
      db = other.open(NAME, "admin", "admin");
      try (FileInputStream in = new FileInputStream(file)) {
        db.restore(in, null, null, QUIET);
      }
      count(found);
      sum(found);
      db.close();
    } finally {
      db = kept;
      if (db != null) db.activateOnCurrentThread();
    }
  }

  static void reimport(String file, String directory, Map<String, Object> found) throws Exception {
    ODatabaseSession kept = db;
    try (OrientDB other = new OrientDB("embedded:" + directory, config())) {
      other.create(NAME, ODatabaseType.PLOCAL);
      db = other.open(NAME, "admin", "admin");
      importFrom(file, found);
      count(found);
      sum(found);
      db.close();
    } finally {
      db = kept;
      if (db != null) db.activateOnCurrentThread();
    }
  }

  static void sync(String file) throws Exception {
    try (FileOutputStream out = new FileOutputStream(file, true)) {
      out.getFD().sync();
    }
  }

  static void lucene(Map<String, Object> found) {
    long began = System.nanoTime();
    db.command("CREATE INDEX " + VERTEX + ".text ON " + VERTEX + " (iri) FULLTEXT ENGINE LUCENE").close();
    found.put("seconds", (System.nanoTime() - began) / 1e9);
    found.put("indexed", textIndexSize());
  }

  static long textIndexSize() {
    ODatabaseDocumentInternal inside = (ODatabaseDocumentInternal) db;
    return inside.getMetadata().getIndexManagerInternal().getIndex(inside, VERTEX + ".text").getInternal().size();
  }

  static void search(String word, Map<String, Object> found) {
    try (OResultSet all = db.query("SELECT count(*) AS n FROM " + VERTEX + " WHERE SEARCH_CLASS(?) = true", word)) {
      found.put("hits", ((Number) all.next().getProperty("n")).longValue());
    }
    found.put("indexed", textIndexSize());
  }

  static final OCommandOutputListener QUIET = text -> {};

  static void say(String key, Object value) {
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
