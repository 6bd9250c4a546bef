// Works on one database of OrientDB 1.x in its own process: what an import of JSON needs.
import com.orientechnologies.orient.core.Orient;
import com.orientechnologies.orient.core.command.OCommandOutputListener;
import com.orientechnologies.orient.core.config.OGlobalConfiguration;
import com.orientechnologies.orient.core.db.ODatabase;
import com.orientechnologies.orient.core.db.document.ODatabaseDocumentTx;
import com.orientechnologies.orient.core.db.record.OIdentifiable;
import com.orientechnologies.orient.core.db.tool.ODatabaseExport;
import com.orientechnologies.orient.core.db.tool.ODatabaseImport;
import com.orientechnologies.orient.core.exception.OSecurityAccessException;
import com.orientechnologies.orient.core.index.OIndex;
import com.orientechnologies.orient.core.metadata.schema.OClass;
import com.orientechnologies.orient.core.metadata.schema.OType;
import com.orientechnologies.orient.core.record.impl.ODocument;
import com.tinkerpop.blueprints.Direction;
import com.tinkerpop.blueprints.impls.orient.OrientGraph;
import com.tinkerpop.blueprints.impls.orient.OrientGraphNoTx;
import com.tinkerpop.blueprints.impls.orient.OrientVertex;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.zip.CRC32;

public class OrientWork1 extends OrientTalk {
  ODatabaseDocumentTx db;
  OrientGraph graph;

  public static void main(String[] args) throws Exception {
    new OrientWork1().serve();
  }

  @Override
  void end() {
    if (db != null) close();
    Orient.instance().shutdown();
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
      case "close" -> close();
      default -> throw new IllegalArgumentException("unknown command " + words[0]);
    }
  }

  void create(String directory, Map<String, Object> found) {
    db = at(directory).create();
    settings(found);
  }

  static ODatabaseDocumentTx at(String directory) {
    return new ODatabaseDocumentTx("plocal:" + directory + "/" + NAME);
  }

  void open(String directory, Map<String, Object> found) {
    db = at(directory);
    if (!db.exists()) throw new IllegalStateException("there is no database in " + directory);
    try {
      db.open("admin", "admin");
    } catch (OSecurityAccessException problem) {
      // An import brings its users along, with their own passwords.
      db.setProperty(ODatabase.OPTIONS.SECURITY.toString(), false);
      db.open("admin", "admin");
    }
    settings(found);
  }

  void settings(Map<String, Object> found) {
    for (OGlobalConfiguration setting : OGlobalConfiguration.values()) {
      String key = setting.getKey();
      if (key.startsWith("storage.") || key.startsWith("tx.")) found.put(key, String.valueOf((Object) setting.getValue()));
    }
  }

  // Closing a database leaves its files open, known by its name; what opens it next would not read them again.
  void close() {
    var storage = db.getStorage();
    db.close();
    storage.close(true, false);
    Orient.instance().unregisterStorage(storage);
    db = null;
    graph = null;
  }

  void schema() {
    OrientGraphNoTx made = new OrientGraphNoTx(db);
    OClass vertex = made.createVertexType(VERTEX);
    vertex.createProperty("iri", OType.STRING).setMandatory(true);
    vertex.createIndex(VERTEX + ".iri", OClass.INDEX_TYPE.UNIQUE, "iri");
    OClass edge = made.createEdgeType(EDGE);
    edge.createProperty("predicate", OType.STRING);
  }

  OIndex<?> index() {
    return db.getMetadata().getIndexManager().getIndex(VERTEX + ".iri");
  }

  // The graph begins its transactions itself.
  @Override
  void begin() {
    if (graph == null) graph = new OrientGraph(db);
  }

  @Override
  void commit() {
    graph.commit();
  }

  OrientVertex vertex(String iri, long[] counts) {
    OIdentifiable rid = (OIdentifiable) index().get(iri);
    if (rid != null) {
      counts[0]++;
      return graph.getVertex(rid);
    }
    counts[1]++;
    return graph.addVertex("class:" + VERTEX, "iri", iri);
  }

  @Override
  void triple(String subject, String predicate, String object, long[] counts) {
    OrientVertex from = vertex(subject, counts);
    OrientVertex to = object.equals(subject) ? from : vertex(object, counts);
    if (to == from) counts[0]++;
    from.addEdge(EDGE, to, null, null, "predicate", predicate);
  }

  // What the disk cache holds goes to the files, and they are synced; then the log can begin anew.
  void synch(Map<String, Object> found) {
    long began = System.nanoTime();
    db.getStorage().synch();
    found.put("seconds", (System.nanoTime() - began) / 1e9);
  }

  void count(Map<String, Object> found) {
    found.put("vertices", has(VERTEX) ? db.countClass(VERTEX) : 0L);
    found.put("edges", has(EDGE) ? db.countClass(EDGE) : 0L);
    found.put("clusters", (long) db.getClusterNames().size());
    found.put("indexes", (long) db.getMetadata().getIndexManager().getIndexes().size());
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
    CRC32 crc = new CRC32();
    for (ODocument edge : db.browseClass(EDGE)) {
      String text = end(edge, "out") + " " + edge.field("predicate") + " " + end(edge, "in");
      crc.reset();
      crc.update(text.getBytes(StandardCharsets.UTF_8));
      sum += crc.getValue();
      edges++;
    }
    found.put("sum", sum);
    found.put("edges", edges);
    found.put("indexed", index().getSize());
  }

  String end(ODocument edge, String side) {
    ODocument vertex = edge.field(side);
    return vertex.field("iri");
  }

  void exportTo(String file, Map<String, Object> found) throws Exception {
    long began = System.nanoTime();
    // OrientDB puts its endings to a name that lacks them, so it must have them.
    if (!file.endsWith(".json.gz")) throw new IllegalArgumentException(file + " must end in .json.gz");
    ODatabaseExport export = new ODatabaseExport(db, file, QUIET);
    export.exportDatabase();
    export.close();
    sync(file);
    found.put("seconds", (System.nanoTime() - began) / 1e9);
    found.put("bytes", new File(file).length());
  }

  void importFrom(String file, Map<String, Object> found) throws Exception {
    long began = System.nanoTime();
    ODatabaseImport work = new ODatabaseImport(db, file, QUIET);
    work.importDatabase();
    work.close();
    found.put("seconds", (System.nanoTime() - began) / 1e9);
  }

  static final OCommandOutputListener QUIET = text -> {};
}
