/**
 * The agent of one device, and its model. Apps use this package. Those with their own runtime also use
 * {@code backends}.
 */
@NullMarked
package org.sedge.edge;

import org.jspecify.annotations.NullMarked;
