"""All that ztune knows of fio."""
