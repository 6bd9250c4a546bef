// Stands before OrientDB 1.x's own class of this name, which asks a class for image plug-ins for services of OrientDB;
// since Java 9 that refuses. ServiceLoader reads the same files.
package com.orientechnologies.common.util;

import java.util.Iterator;
import java.util.ServiceLoader;

public class OClassLoaderHelper {
  public static synchronized <T> Iterator<T> lookupProviderWithOrientClassLoader(Class<T> service) {
    return lookupProviderWithOrientClassLoader(service, OClassLoaderHelper.class.getClassLoader());
  }

  public static synchronized <T> Iterator<T> lookupProviderWithOrientClassLoader(Class<T> service, ClassLoader loader) {
    return ServiceLoader.load(service, loader).iterator();
  }
}
