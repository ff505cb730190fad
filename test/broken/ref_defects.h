/* SPDX-License-Identifier: Apache-2.0
 *
 * What can be broken in the reference plugin, one defect a library: it looks at
 * its own file name. libnccl-net-broken-NAME.so has the defect NAME,
 * libnccl-net-ref.so none. Each stands where a programmer would make it:
 * look for BROKEN(NAME).
 *
 * A row is the name, what the plugin does, and where it comes from: a place in
 * NCCL 2.30.7 (src/) that relies on the opposite or does it itself, or a report.
 */
#ifndef REF_DEFECTS_H
#define REF_DEFECTS_H

#include <stddef.h>
#include <stdint.h>

#define REF_DEFECTS(X)                                                                                               \
  /* lifecycle */                                                                                                    \
  X(init_once, "a second init in the process fails", "plugin/net.cc:169: one init a communicator")                   \
  X(init_leaves_ctx, "init leaves *ctx unwritten", "plugin/net.cc:169")                                              \
  X(finalize_null, "finalize(NULL) is an error", "NCCL 2.28.9 plugin/net.cc:224 finalizes after a failed init")      \
  X(finalize_leaks, "finalize leaves what is half open", "net.cc:1204: an abort drops it silently")                  \
  X(context_shared, "the first finalize stops the connections of all contexts", "net_socket.cc:43: global state")    \
  X(thread_outlives, "a thread goes on after finalize, into unloaded code", "NVIDIA/nccl#1620")                      \
  X(exit_hangs, "a destructor does not return when the program ends", "init.cc:284: none is closed at exit")         \
  /* properties */                                                                                                   \
  X(name_moves, "getProperties gives the name in new memory each time", "topo.cc:1592 keeps all names")              \
  X(name_twice, "all devices have one name", "xml.cc:1100: the name is the identity")                                \
  X(props_hole, "planeId is left unwritten", "topo.cc:1620: the structure is not initialised")                       \
  X(props_devices, "vProps.ndevs is 0", "topo.cc:1620")                                                              \
  X(p2p_bytes_zero, "maxP2pBytes is 0", "net.cc:760")                                                                \
  X(p2p_bytes_huge, "maxP2pBytes is above 1 TB", "net.cc:760")                                                       \
  X(speed_unknown, "the speed of an interface without one is passed on as -1", "topo.cc:415")                        \
  X(pci_path_name, "pciPath is a bare name, without a slash", "xml.cc:1123: strcpy of what follows the slash")       \
  X(device_type, "netDeviceType is none that NCCL knows", "plugin/net.cc:140")                                       \
  X(guid_random, "the guid differs from process to process", "net.cc:303: devices are named across processes")       \
  X(devices_grow, "devices answers one more when asked again", "plugin/net.cc:180")                                  \
  X(fuse_no_pci, "makeVDevice fuses devices without a PCI path", "topo.cc:1515: NCCL 2.30.7 then has no network")    \
  X(fuse_one_refused, "makeVDevice refuses one device", "topo.cc of 2.26: asked for each that is not merged")          \
  X(v8_props_shifted, "v8's properties are filled in v7's layout", "net_v8.h: regIsGlobal came in between")          \
  /* listen, accept */                                                                                               \
  X(handle_hole, "listen trusts that the handle was full of zeros", "transport.h:67: nobody zeroes it")              \
  X(handle_overrun, "listen writes beyond the handle's 128 bytes", "transport.h:67")                                 \
  X(listen_close_error, "closeListen returns an error", "net.cc:1090")                                               \
  X(listens_few, "no more than 64 listens", "transport.cc:75: 128 peers times channels at once")                     \
  X(one_guest, "the port closes after the first connection", "gin.cc:174 connects several times to one handle")      \
  X(accept_impatient, "accept with nobody there is an error", "net.cc:1048: asked in a loop")                        \
  X(accept_once_eintr, "accept waits 1 ms, and a signal meanwhile is an error", "NVIDIA/nccl#1757")                  \
  X(foreign_blocks, "a silent client holds the only place for ever", "NVIDIA/nccl#1808, net_socket.cc:514")          \
  X(foreign_hangs, "accept waits for a client's first word", "NVIDIA/nccl#1871")                                     \
  X(foreign_accepted, "whoever sends enough bytes is a peer", "NVIDIA/nccl#1996")                                    \
  X(foreign_crashes, "a number from the wire is used as an index unchecked", "net_socket.cc:523")                    \
  X(foreign_leaks, "who is turned away keeps its descriptor", "net_socket.cc:500")                                   \
  X(files_run_out, "accept fails when foreign clients use up the descriptors", "NVIDIA/nccl#1808")                   \
  /* connect */                                                                                                      \
  X(connect_sleeps, "connect sleeps 5 ms in each call", "os/linux.cc:283: up to 60 s")                               \
  X(connect_dirty, "connect leaves *sendComm set when it fails", "net.cc:890 closes it, then again")                 \
  X(connect_waits_for_accept, "connect waits until accept is called", "bootstrap.cc:604: one thread does both")      \
  X(handle_address, "connect remembers where the handle lay", "net.cc:844")                                          \
  X(handle_trusted, "connect takes a pointer out of the handle", "net_socket.cc:460")                                \
  X(in_progress_escapes, "connect returns 7 while it is in progress", "err.h: no result for plugins")                \
  X(dead_port_for_ever, "connect tries a dead port for ever", "proxy.cc:1637: NCCL has no timeout")                  \
  X(dev_handle_junk, "connect and accept set a device handle for a host device", "net.cc:817")                       \
  X(streams_crossed, "connections that arrive together get each other's way back", "gin.cc:174 connects again")      \
  /* requests */                                                                                                     \
  X(no_request, "*request is left alone when there is none to give", "net.cc:1414: the slot holds a stale one")      \
  X(no_done, "*done is left alone until it is 1", "net.cc:1433: not initialised")                                    \
  X(full_is_error, "a full table is an error", "net_socket.cc:558")                                                  \
  X(table_of_8, "only 8 requests can be outstanding", "README.md:330: 32 times maxRecvs")                            \
  X(request_reused, "a request is handed out again while it is outstanding", "p2p.cc:33")                            \
  X(test_in_order, "a request is done only after all older ones", "net_socket.cc:608")                               \
  X(early_done, "a send is done before its data were read", "net.cc:1433: the slot is given back to the GPU")        \
  X(send_size_zero, "a send reports 0 bytes", "net.cc:1434")                                                         \
  X(sizes_null, "test writes sizes though it is NULL", "bootstrap.cc:174")                                           \
  X(sizes_overrun, "test writes 8 sizes whatever n was", "net.cc:1617")                                              \
  X(consumed_frees, "irecvConsumed frees the request a second time", "net.cc:1735 passes the old pointer later")     \
  X(test_blocks, "test waits until the request is done", "net_socket.cc:626: spins on a stalled peer")               \
  X(test_sleeps, "test sleeps 3 ms when there is nothing", "proxy.cc:954: one thread for all connections")           \
  X(arrays_kept, "irecv keeps the caller's arrays", "net.cc:1523: they are on its stack")                            \
  /* sizes */                                                                                                        \
  X(size_truncated, "sizes above 65536 lose their upper bits", "a 16-bit field in a header")                         \
  X(size_int, "a size of 2 GiB or more loses its upper bits", "net_socket.cc:731: (int)size")                        \
  X(size_unreported, "a size of 0 is not reported", "net.cc:1620")                                                   \
  X(zero_never_done, "a message of 0 bytes waits for its first byte", "enqueue.cc:1075: they are normal")            \
  X(short_write, "a partial write counts as the whole", "short counts are normal with TCP")                          \
  X(corrupt_byte, "the last byte of every 50th message is wrong", "no checksum of TCP's own sees a plugin's bug")    \
  X(one_byte_more, "a byte behind the message is touched", "net.cc:1567: room is larger than the message")           \
  X(oversize_silent, "a message too large is cut off silently", "p2p.cc:295")                                        \
  X(oversize_remote, "a message too large is a remote error", "README.md:128: invalid usage")                        \
  X(oversize_overrun, "a message too large is written all the same", "no check of the size on the wire")             \
  X(v6_sizes_widened, "v6 to v8 read the sizes of irecv as if they were size_t", "net_v8.h: int sizes")              \
  X(v6_swapped, "v6 to v8 swap size and tag of isend", "a shim written by hand")                                     \
  /* order, groups */                                                                                                \
  X(messages_swapped, "a message takes the newest receive, not the oldest", "README.md:399")                         \
  X(heads_interleave, "testing another send starts it in the middle of the first", "net_socket.cc:608")              \
  X(tag_ignored, "a group is filled in order of arrival", "README.md:399")                                           \
  X(group_swapped, "two buffers of a group are exchanged", "net.cc:1575")                                            \
  X(group_shifted, "first and last size of a group are exchanged", "net.cc:1620")                                    \
  X(sizes_by_arrival, "a group's sizes come in order of arrival", "net.cc:1620")                                     \
  X(group_done_early, "a group is done with its first message", "net.cc:1620")                                       \
  X(group_n_kept, "n is taken from the first irecv", "net.cc:1528: n shrinks")                                       \
  /* optional receives, lines */                                                                                     \
  X(optional_followed, "0x1 in *request is followed as a pointer", "net.cc:1585")                                    \
  X(optional_returned, "0x1 in *request is left there", "net.cc:1585")                                               \
  X(optional_dropped, "the data of an optional receive are dropped", "net.cc:1585: the GPU polls for them")          \
  X(bytewise_copy, "data are copied last byte first", "device.h:75: 8-byte units")                                   \
  X(torn_line, "lines of 128 bytes are copied in two halves, the second first", "p2p.cc:80")                         \
  X(flush_zero, "iflush refuses a buffer without data", "net.cc:1640: sizes as test gave them")                       \
  X(flush_spoils, "iflush changes the last byte of the buffer", "net.cc:1640: the data are the receiver's")          \
  X(flush_after_error, "iflush crashes when the connection has failed", "net.cc:1640")                               \
  /* memory */                                                                                                       \
  X(dereg_null, "deregMr(NULL) is an error", "net.cc:1211")                                                          \
  X(dereg_lazy, "deregMr lets requests go on with the memory", "net_socket.cc:770")                                  \
  X(mr_race, "deregMr changes the table while isend looks into it", "net.cc:2047: two threads, one comm")            \
  X(mr_pages, "regMr wants whole pages", "net.cc:984: addresses and sizes are odd")                                  \
  X(mr_cache, "registering a range twice gives one handle without a count", "init.cc:810: ranges overlap")           \
  X(cuda_accepted, "regMr takes device memory that the plugin cannot reach", "net.cc:1921: tried, then left")        \
  /* close */                                                                                                        \
  X(close_null, "closing NULL is an error", "net.cc:1204")                                                           \
  X(close_error, "close returns an error", "proxy.cc:1112: the rest is leaked")                                      \
  X(close_error_after_death, "close returns an error when the peer is gone", "net_socket.cc:785")                    \
  X(close_busy, "close refuses while requests are outstanding", "proxy.cc:1008: normal at an abort")                 \
  X(close_slow, "close takes 1.5 s", "NVIDIA/nccl#992")                                                              \
  X(close_waits, "close waits for the peer to close", "aws-ofi-nccl#683")                                            \
  X(close_resets, "close resets the connection under data that were sent", "unread bytes turn close into a reset")   \
  X(close_hidden, "close is not seen while a forked child has the socket", "no shutdown before close")               \
  X(close_is_error, "sends fail that the peer acknowledged before it closed", "net.cc:1259: closeRecv follows")      \
  X(close_is_loud, "the end of a connection with nothing outstanding is a warning", "net.cc:1259 closes so")         \
  /* death */                                                                                                        \
  X(death_unnoticed, "the end of the peer is never reported", "NCCL has no detection of its own")                    \
  X(death_other_error, "the end of the peer is a system error", "README.md:128: remote error")                       \
  X(reset_is_success, "a broken connection completes receives, short", "no check of what recv returned")             \
  X(sigpipe, "close says goodbye to a peer that is gone, and is killed by it", "no MSG_NOSIGNAL")                    \
  X(eintr_is_death, "test waits 1 ms, and a signal meanwhile is the end of the peer", "NVIDIA/nccl#1757")            \
  X(test_after_error, "test after an error crashes", "proxy.cc:801: siblings are asked once more")                   \
  /* threads, processes */                                                                                           \
  X(global_lock, "one lock for all connections is held while accept waits", "proxy.cc:954")                          \
  X(static_buffer, "all connections share one bounce buffer", "net.cc: one pair of threads a communicator")          \
  X(attr_race, "setNetAttr frees and allocates without a lock", "net.cc:222: two threads")                           \
  X(profiler_null, "the profiler is called without a handle", "bootstrap.cc:171 passes NULL")                        \
  X(inheritable, "sockets survive exec in a child", "no SOCK_CLOEXEC")                                               \
  /* cost */                                                                                                         \
  X(fd_leak, "a descriptor is lost in each connect", "net_socket.cc:458")                                            \
  X(memory_leak, "64 KiB are lost in each connect", "net_ib/connect.cc:1089")                                        \
  X(message_leak, "256 bytes are lost with each message", "a request's extra, never freed")                          \
  X(thread_leak, "a thread stays behind with each connection", "aws-ofi-nccl#620")                                   \
  X(idle_spin, "a thread spins while nothing moves", "NVIDIA/nccl#374")

enum ref_defect {
  REF_SOUND,
  REF_UNKNOWN, /* a file name that names none: no devices */
#define X(name, what, origin) REF_DEFECT_##name,
  REF_DEFECTS(X)
#undef X
};

extern enum ref_defect ref_defect; /* of this library, from its loading on */

#define BROKEN(name) __builtin_expect(ref_defect == REF_DEFECT_##name, 0)

/* ---- the longer ones ---- */

struct ref_comm;
void ref_break_connection(void);  /* leaks, threads: once a connection */
void ref_break_unloading(void);   /* thread_outlives */
void ref_break_message(void);     /* message_leak */
uint8_t *ref_break_place(size_t size); /* a place that is never read */
void ref_break_close(int fd);     /* such that a reset goes out */
void ref_break_attr(const void *attr, size_t size);
size_t ref_break_reading(int fd, uint8_t *to, size_t size); /* as recv, through a bounce buffer; 0: nothing */
int ref_cloexec(void);            /* SOCK_CLOEXEC, unless inheritable */
void ref_break_lock(void);        /* global_lock, else nothing */
void ref_break_unlock(void);

#endif
