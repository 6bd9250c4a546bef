// Works on one database of OrientDB 1.7 in its own process: what OrientWork1 does, backups, and an index of Lucene.
import com.orientechnologies.orient.core.db.document.ODatabaseDocumentTx;
import com.orientechnologies.orient.core.index.OIndex;
import com.orientechnologies.orient.core.sql.OCommandSQL;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.util.Collection;
import java.util.Map;

public class OrientWork17 extends OrientWork1 {
  public static void main(String[] args) throws Exception {
    new OrientWork17().serve();
  }

  @Override
  void act(String[] words, Map<String, Object> found) throws Exception {
    switch (words[0]) {
      case "backup" -> backup(words[1], Integer.parseInt(words[2]), found);
      case "restore" -> restore(words[1], words[2], found);
      case "reimport" -> reimport(words[1], words[2], found);
      case "lucene" -> lucene(found);
      case "search" -> search(words[1], found);
      default -> super.act(words, found);
    }
  }

  // As large as the study's must have been: 811 writes of 512 KiB to 1 MiB made its backup of 831,031 KB. The buffer is
  // written when what comes next doesn't fit.
  static final int BUFFER = 1 << 20;

  void backup(String file, int level, Map<String, Object> found) throws Exception {
    long began = System.nanoTime();
    try (FileOutputStream out = new FileOutputStream(file)) {
      db.backup(out, null, null, QUIET, level, BUFFER);
    }
    sync(file);
    found.put("seconds", (System.nanoTime() - began) / 1e9);
    found.put("bytes", new File(file).length());
  }

  // Into another directory, and counted there: a backup that can't be restored is none. The database itself is closed
  // meanwhile: 1.x knows a storage by its name alone, and both have the same.
  void restore(String file, String directory, Map<String, Object> found) throws Exception {
    String home = leave();
    // Where no database is. Tried: one that was made and closed there before still hides the restored classes.
    if (!new File(directory, NAME).mkdirs()) throw new IllegalStateException("there is something in " + directory);
    db = at(directory);
    try (FileInputStream in = new FileInputStream(file)) {
      db.restore(in, null, null, QUIET);
    }
    close();
    open(directory, found);
    compare(home, found);
  }

  void reimport(String file, String directory, Map<String, Object> found) throws Exception {
    String home = leave();
    create(directory, found);
    importFrom(file, found);
    compare(home, found);
  }

  String leave() {
    String home = new File(db.getURL().substring("plocal:".length())).getParent();
    close();
    return home;
  }

  void compare(String home, Map<String, Object> found) {
    count(found);
    sum(found);
    close();
    open(home, found);
  }

  void lucene(Map<String, Object> found) {
    long began = System.nanoTime();
    db.command(new OCommandSQL("CREATE INDEX " + VERTEX + ".text ON " + VERTEX + " (iri) FULLTEXT ENGINE LUCENE")).execute();
    found.put("seconds", (System.nanoTime() - began) / 1e9);
    found.put("indexed", textIndex().getSize());
  }

  OIndex<?> textIndex() {
    return db.getMetadata().getIndexManager().getIndex(VERTEX + ".text");
  }

  // Of the index itself: the plug-in's operator of SQL calls a method that this core lacks.
  void search(String word, Map<String, Object> found) {
    found.put("hits", (long) ((Collection<?>) textIndex().get(word)).size());
    found.put("indexed", textIndex().getSize());
  }
}
