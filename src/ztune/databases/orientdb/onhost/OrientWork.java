// Works on one OrientDB 3.2 database in its own process.
import com.orientechnologies.orient.core.command.OCommandOutputListener;
import com.orientechnologies.orient.core.config.OGlobalConfiguration;
import com.orientechnologies.orient.core.db.ODatabaseDocumentInternal;
import com.orientechnologies.orient.core.db.ODatabaseSession;
import com.orientechnologies.orient.core.db.ODatabaseType;
import com.orientechnologies.orient.core.db.OrientDB;
import com.orientechnologies.orient.core.db.OrientDBConfig;
import com.orientechnologies.orient.core.db.OrientDBInternal;
import com.orientechnologies.orient.core.db.tool.ODatabaseExport;
import com.orientechnologies.orient.core.db.tool.ODatabaseImport;
import com.orientechnologies.orient.core.exception.OSecurityAccessException;
import com.orientechnologies.orient.core.id.ORID;
import com.orientechnologies.orient.core.index.OIndex;
import com.orientechnologies.orient.core.metadata.schema.OClass;
import com.orientechnologies.orient.core.metadata.schema.OType;
import com.orientechnologies.orient.core.record.OEdge;
import com.orientechnologies.orient.core.record.OVertex;
import com.orientechnologies.orient.core.record.impl.ODocument;
import com.orientechnologies.orient.core.sql.executor.OResultSet;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import java.util.TreeMap;
import java.util.zip.CRC32;

public class OrientWork extends OrientTalk {
  OrientDB orient;
  ODatabaseSession db;
  OIndex lookup;

  public static void main(String[] args) throws Exception {
    new OrientWork().serve();
  }

  @Override
  void end() {
    if (db != null) {
      db.activateOnCurrentThread();
      db.close();
    }
    if (orient != null) orient.close();
  }

  @Override
  void act(String[] words, Map<String, Object> found) throws Exception {
    switch (words[0]) {
      case "create" -> create(words[1], found);
      case "open" -> open(words[1], found);
      case "schema" -> schema();
      case "triples" -> triples(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]), found);
      case "synch" -> synch(found);
      case "count" -> count(found);
      case "classes" -> classes(found);
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

  OrientDBConfig config() {
    return OrientDBConfig.builder().addConfig(OGlobalConfiguration.CREATE_DEFAULT_USERS, true).build();
  }

  void create(String directory, Map<String, Object> found) {
    orient = new OrientDB("embedded:" + directory, config());
    orient.create(NAME, ODatabaseType.PLOCAL);
    open(found);
  }

  void open(String directory, Map<String, Object> found) {
    orient = new OrientDB("embedded:" + directory, config());
    if (!orient.exists(NAME)) throw new IllegalStateException("there is no database in " + directory);
    open(found);
  }

  void open(Map<String, Object> found) {
    try {
      db = orient.open(NAME, "admin", "admin");
    } catch (OSecurityAccessException problem) {
      // An import brings its users along, with their own passwords.
      db = OrientDBInternal.extract(orient).openNoAuthorization(NAME);
    }
    for (OGlobalConfiguration setting : OGlobalConfiguration.values()) {
      String key = setting.getKey();
      if (key.startsWith("storage.") || key.startsWith("tx.")) found.put(key, String.valueOf((Object) setting.getValue()));
    }
  }

  void close() {
    db.activateOnCurrentThread();
    db.close();
    orient.close();
    db = null;
    orient = null;
  }

  void schema() {
    OClass vertex = db.createVertexClass(VERTEX);
    vertex.createProperty("iri", OType.STRING).setMandatory(true);
    vertex.createIndex(VERTEX + ".iri", OClass.INDEX_TYPE.UNIQUE, "iri");
    OClass edge = db.createEdgeClass(EDGE);
    edge.createProperty("predicate", OType.STRING);
  }

  OIndex index() {
    ODatabaseDocumentInternal inside = (ODatabaseDocumentInternal) db;
    return inside.getMetadata().getIndexManagerInternal().getIndex(inside, VERTEX + ".iri");
  }

  @Override
  void begin() {
    lookup = index();
    db.begin();
  }

  @Override
  void commit() {
    db.commit();
  }

  OVertex vertex(String iri, long[] counts) {
    ORID rid;
    try (Stream<ORID> rids = lookup.getInternal().getRids(iri)) {
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

  @Override
  void triple(String subject, String predicate, String object, long[] counts) {
    OVertex from = vertex(subject, counts);
    OVertex to = object.equals(subject) ? from : vertex(object, counts);
    if (to == from) counts[0]++;
    OEdge edge = from.addEdge(to, EDGE);
    edge.setProperty("predicate", predicate);
    edge.save();
  }

  // What the disk cache holds goes to the files, and they are synced; then the log can begin anew.
  void synch(Map<String, Object> found) {
    long began = System.nanoTime();
    ((ODatabaseDocumentInternal) db).getStorage().synch();
    found.put("seconds", (System.nanoTime() - began) / 1e9);
  }

  void count(Map<String, Object> found) {
    found.put("vertices", has(VERTEX) ? db.countClass(VERTEX) : 0L);
    found.put("edges", has(EDGE) ? db.countClass(EDGE) : 0L);
    found.put("clusters", (long) db.getClusterNames().size());
    found.put("indexes", (long) ((ODatabaseDocumentInternal) db).getMetadata().getIndexManagerInternal()
        .getIndexes((ODatabaseDocumentInternal) db).size());
    long records = 0;
    for (String name : db.getClusterNames()) records += db.countClusterElements(name);
    found.put("records", records);
  }

  // The records of each class, each of them read; under the empty name those of no class. What OrientDB keeps for itself
  // is left out.
  void classes(Map<String, Object> found) {
    Map<String, Long> counts = new TreeMap<>();
    for (String name : db.getClusterNames()) {
      if (Set.of("internal", "index", "manindex").contains(name.toLowerCase(Locale.ROOT))) continue;
      for (Iterator<?> all = db.browseCluster(name); all.hasNext(); ) {
        Object one = all.next();
        String of = one instanceof ODocument document ? document.getClassName() : null;
        counts.merge(of == null ? "" : of, 1L, Long::sum);
      }
    }
    found.put("classes", counts);
  }

  boolean has(String name) {
    return db.getMetadata().getSchema().existsClass(name);
  }

  // The sum of the CRC-32 of every edge as a triple: whatever the order, another edge gives another sum.
  void sum(Map<String, Object> found) {
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

  void exportTo(String file, Map<String, Object> found) throws Exception {
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

  void importFrom(String file, Map<String, Object> found) throws Exception {
    long began = System.nanoTime();
    ODatabaseImport work = new ODatabaseImport((ODatabaseDocumentInternal) db, file, QUIET);
    work.importDatabase();
    work.close();
    found.put("seconds", (System.nanoTime() - began) / 1e9);
  }

  void backup(String file, int level, Map<String, Object> found) throws Exception {
    long began = System.nanoTime();
    try (FileOutputStream out = new FileOutputStream(file)) {
      db.backup(out, null, null, QUIET, level, 1 << 16);
    }
    sync(file);
    found.put("seconds", (System.nanoTime() - began) / 1e9);
    found.put("bytes", new File(file).length());
  }

  // Into another directory, and counted there: a backup that can't be restored is none.
  void restore(String file, String directory, Map<String, Object> found) throws Exception {
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

  void reimport(String file, String directory, Map<String, Object> found) throws Exception {
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

  void lucene(Map<String, Object> found) {
    long began = System.nanoTime();
    db.command("CREATE INDEX " + VERTEX + ".text ON " + VERTEX + " (iri) FULLTEXT ENGINE LUCENE").close();
    found.put("seconds", (System.nanoTime() - began) / 1e9);
    found.put("indexed", textIndexSize());
  }

  long textIndexSize() {
    ODatabaseDocumentInternal inside = (ODatabaseDocumentInternal) db;
    return inside.getMetadata().getIndexManagerInternal().getIndex(inside, VERTEX + ".text").getInternal().size();
  }

  void search(String word, Map<String, Object> found) {
    try (OResultSet all = db.query("SELECT count(*) AS n FROM " + VERTEX + " WHERE SEARCH_CLASS(?) = true", word)) {
      found.put("hits", ((Number) all.next().getProperty("n")).longValue());
    }
    found.put("indexed", textIndexSize());
  }

  static final OCommandOutputListener QUIET = text -> {};
}
